"""`python -m sweeper.doctor`: what this machine can do, and how far its clock can be trusted."""
