"""Reports: the tables of sweeps as CSV, Markdown, a page and text for a terminal;
`build.write_report` makes them.
"""
