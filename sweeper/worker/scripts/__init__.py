"""A user's own training script, measured unchanged: `script_runner` starts it, `loop` sees
its steps, `phases` times them.
"""
