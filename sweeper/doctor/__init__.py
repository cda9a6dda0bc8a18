"""`python -m sweeper.doctor`: says what this machine can do, and how far its clock can be
trusted.
"""
