"""All that sees a user's script from inside its process, or stands in torch in place of what was
there: docs/scripts.md#what-your-process-gets lists it.
"""
