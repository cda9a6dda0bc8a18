"""Reads sweeps from folders or from MLflow: `entries.load_from` makes an entry of each trial."""
