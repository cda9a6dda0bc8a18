"""Whether the compiled step does what the eager one does."""
