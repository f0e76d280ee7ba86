"""The Python client under its first name. Imports airlock (clients/python), whose names it has, and nothing else.

Start at `__init__.py`.
"""

from airlock.exports import *  # noqa: F403 - it lists them
