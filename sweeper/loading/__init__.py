"""Sweeps from a folder or from MLflow: `entries.load` gives an entry a trial."""
