"""The tables of a report, each with its columns, its rows and its `SPEC`, which
`report/tables/registry.py` lists.
"""
