"""The worker: `python -m sweeper.worker trial.json`, the only code that imports torch.

It builds a model, times eager and compiled in turn, and answers with one
`sweeper.core.protocol.Outcome`.
"""
