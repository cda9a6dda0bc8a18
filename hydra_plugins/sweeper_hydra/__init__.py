"""Thin shells around `sweeper.sweep.hydra_app`: the grid sweeper, the launchers local and ray."""
