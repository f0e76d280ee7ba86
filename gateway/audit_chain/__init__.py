"""What an audit record is, how records are chained, and the signed anchor of a chain's head.

Start at `record.py`. Pure: no database, no clock; the command line and the client verify chains with it.
"""
