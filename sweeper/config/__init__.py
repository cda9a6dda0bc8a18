"""YAML and command line to trials: `reader.read` is the step from Hydra's configuration to `Trial` and `Settings`."""
