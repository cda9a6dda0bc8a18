"""The tables of a report, each with its columns and its rows."""
