"""How many examples hypothesis tries.

The profile `quick`, of `make test`, tries as many as a test names; `full`, of `make test-all`, five times as many.
"""

from __future__ import annotations

from typing import Any

from hypothesis import settings

_TIMES = {"quick": 1, "full": 5}

for _name in _TIMES:
    # Derandomized: a failure that one run finds is found by the next.
    settings.register_profile(_name, derandomize=True, deadline=None)


def examples(count: int, **others: Any) -> settings:
    """Return settings for `count` examples, or more in a profile that tries more."""
    return settings(max_examples=count * _TIMES.get(settings.get_current_profile_name(), 1), **others)
