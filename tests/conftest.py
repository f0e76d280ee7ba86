"""What all tests share: a failure that hypothesis finds is found again by the next run."""

from hypothesis import settings

settings.register_profile("airlock", derandomize=True, deadline=None)
settings.load_profile("airlock")
