"""What runs a user's script, and sees it from inside its process. `patches` owns everything that
stands there in place of what was there: docs/scripts.md#what-your-process-gets lists it.
"""
