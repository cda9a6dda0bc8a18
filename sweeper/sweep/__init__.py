"""The life of a sweep: `driver.drive` plans, checks, runs, tracks and reports."""
