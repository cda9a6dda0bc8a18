"""Trials on devices: `execute.execute` runs trials in worker processes of their own and gives their records."""
