"""The comparison of a script's training with eager, step by step."""
