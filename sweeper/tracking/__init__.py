"""Sends records to MLflow (`tracker.Tracker`) and reads them back (`reader.RunReader`)."""
