"""Runs trials on devices, each in worker processes of its own; `execute.execute` gives what happens
as events.
"""
