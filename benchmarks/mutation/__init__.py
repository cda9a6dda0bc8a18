"""The parts of `benchmarks/mutants.py`."""
