"""How many examples hypothesis tries.

The profile `quick`, of `make test`, tries half as many as a test names, the same in each run; `full`, of
`make test-all`, five times as many as it names. One that names none has a hundred at most.
"""

from __future__ import annotations

from typing import Any

from hypothesis import settings

_TIMES = {"quick": 0.5, "full": 5}
_UNNAMED = 100

for _name, _times in _TIMES.items():
    # Derandomized: a failure that one run finds is found by the next.
    settings.register_profile(_name, derandomize=True, deadline=None, max_examples=round(_UNNAMED * min(1, _times)))


def examples(count: int, **others: Any) -> settings:
    """Return settings for `count` examples, or more in a profile that tries more."""
    times = _TIMES.get(settings.get_current_profile_name(), 1)
    return settings(max_examples=max(1, round(count * times)), **others)
