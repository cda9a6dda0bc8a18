"""The tables of a report, each a class with its columns and its rows, which
`report/tables/registry.py` lists.
"""
