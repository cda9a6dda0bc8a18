"""Answers: what a report says, as values, before it becomes a table or a sentence."""
