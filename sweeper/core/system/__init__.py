"""This process and the machine under it: processor, GPUs, signals, pipes, exit codes, leftovers and shortages."""
