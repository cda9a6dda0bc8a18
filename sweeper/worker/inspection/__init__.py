"""Writes what the compiler did, for people: `python -m sweeper.worker trial.json --inspect
FOLDER`.
"""
