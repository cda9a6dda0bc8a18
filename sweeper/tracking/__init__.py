"""Records to MLflow and back: `tracker.Tracker` sends them, `reader.Store` reads them."""
