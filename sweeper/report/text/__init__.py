"""A report as text: Markdown, the terminal, the description of a run in MLflow."""
