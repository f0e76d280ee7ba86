"""The end of data: retention by age, and erasure of a thread or a tenant.

Start at `retention.py` and `erasure.py`; `trusted_time.py` decides whether a jump of the clock is believed.
Imports config and storage.
"""
