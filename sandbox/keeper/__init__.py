"""The keeper leases one sandbox to each thread, stops idle ones and brings them back.

Start at `leases.py`, what calls ask for, and `sandbox_keeper.py`, which implements it. Imports sandbox layers below 7.
"""
