"""A user's own training script, measured unchanged: `lead` starts it, `loop` sees its steps,
`readings` times them.
"""
