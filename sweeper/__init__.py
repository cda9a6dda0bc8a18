"""sweeper measures what torch.compile gains over eager, trial by trial, and says how sure it is.

Importing the package stays light: torch, mlflow, hydra and pandas load only where they are used.
"""

__version__ = "0.1.0"
