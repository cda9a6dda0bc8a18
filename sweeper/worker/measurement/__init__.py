"""The clock, the step, memory and energy: what is measured of an arm."""
