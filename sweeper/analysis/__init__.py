"""Numbers from records: `metrics.derive` gives the figures of a record, with intervals and flags."""
