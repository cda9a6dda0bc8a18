"""Times steps of both arms in rounds (`bench.measure_rounds`), and reads their memory, device time
and energy.
"""
