"""This process and the machine under it: command line, signals, pipes, exit codes, host, GPUs,
shortages, leftovers.
"""
