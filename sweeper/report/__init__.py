"""`python -m sweeper.report`: records in, tables out, as CSV, Markdown and on the terminal.

Place in the flow: `load` reads records, `speedups`, `summary` and `failures` declare the tables, `readable` turns rows
into text for `markdown` and `terminal`, `page` makes report.html of them with
`figures`, `costs` and `steps`, and `build.write_report` puts it together for the command line and the driver; `forks`
lets the command line use several cores.
"""
