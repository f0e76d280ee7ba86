"""Audit records, how they are chained, and the signed anchor of a chain's head.

Start at `chain.py`. Pure functions without a database or a clock: the CLI and the client verify chains with them.
Imports gateway layers below 4.
"""
