"""The signed anchor of the head of an audit's chain; airlock.audit_chain has the records and the chain itself.

Start at `anchor.py`. Pure functions without a database or a clock: the CLI verifies anchors with them. Imports gateway
layers below 4.
"""
