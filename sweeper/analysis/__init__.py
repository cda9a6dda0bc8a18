"""Numbers from records: `derive` gives the figures of a record, with intervals; `flags`
gives its flags.
"""
