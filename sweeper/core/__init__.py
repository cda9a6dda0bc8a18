"""What driver and worker share: trials, records, the words between processes. Standard library only, since a worker may
run in an interpreter that has torch and nothing else.
"""
