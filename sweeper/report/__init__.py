"""Reports: the tables of sweeps as CSV, Markdown, a page and text for a terminal;
`build.make_report` makes them.
"""
