"""Comparison of two sweeps: what an upgrade made slower or faster, and what it broke.

`python -m sweeper.compare BASE HEAD` is the command; `verdicts.judge` gives the verdicts on pairs
of trials.
"""
