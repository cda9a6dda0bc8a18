"""YAML and the command line to trials: `reader.read` turns Hydra's configuration into a `Trial` and
`Settings`.
"""
