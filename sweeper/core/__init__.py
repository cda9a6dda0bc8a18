"""What driver and worker share: trials, settings, records, paths and the protocol between them.

Imports the standard library only (NVML inside functions): a worker may run where there is torch and
nothing else.
"""
