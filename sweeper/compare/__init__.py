"""`python -m sweeper.compare BASE HEAD`: did the upgrade make models slower or faster, or break them.

Place in the flow: `sides` makes sides of the records of two sweeps, `lost` says which trials have none, `pairs` puts
sides of one trial together, `quantities` says what is compared, `verdicts` judges the pairs, `changes` tells what else
is not as it was, `tables` declares the rows, `text` writes them.
"""
