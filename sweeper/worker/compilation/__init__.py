"""Asking torch to compile, and what its compiler did."""
