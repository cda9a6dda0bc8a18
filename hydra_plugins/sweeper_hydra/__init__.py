"""sweeper's Hydra plugins: the grid sweeper and the launchers local and ray, thin shells around `sweeper.app`."""
