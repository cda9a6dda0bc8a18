"""Runs a whole sweep: `driver.run_sweep` plans, checks, runs, tracks and reports the trials of a
grid.
"""
