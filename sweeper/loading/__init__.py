"""Reads sweeps from folders or from MLflow: `entries.load` makes an entry of each trial."""
