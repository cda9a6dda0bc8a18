"""Checks that the compiled step is right (`check.AccuracyCheck`), by the rule in `rule`."""
