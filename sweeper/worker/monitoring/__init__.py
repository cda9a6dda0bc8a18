"""Reads what else goes on between blocks (`round_monitor.RoundMonitor`): on the GPU, on the host,
in torch's flags.
"""
