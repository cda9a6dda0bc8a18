"""sweeper's Hydra plugins: the grid sweeper and the local launcher, thin shells around `sweeper.app`."""
