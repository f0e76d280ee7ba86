"""What all tests share: a failure that hypothesis finds is found again by the next run; PostgreSQL where one asks."""

from hypothesis import settings

pytest_plugins = ["tests.postgres"]

settings.register_profile("airlock", derandomize=True, deadline=None)
settings.load_profile("airlock")
