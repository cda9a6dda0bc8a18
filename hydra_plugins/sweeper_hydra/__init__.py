"""Hydra's plugins around `sweeper.sweep.hydra_app`: the grid sweeper, and the launchers local,
slurm and ray.
"""
