"""A user's own training script, measured unchanged: `runs` starts it several times, `watch` sees
its steps, `phases` times them.
"""
