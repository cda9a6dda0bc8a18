"""Columns: the values of tables, and how people see them."""
