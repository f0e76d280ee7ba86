"""Regular expressions that operators and tenants write: RE2, whose time is linear in the text whatever the pattern.

Python's own engine can take years over a short text; so no pattern from a policy ever reaches it.
"""

from functools import lru_cache
from typing import Any

import re2

LIMIT_CHARS = 1000
_LIMIT_MEMORY_BYTES = 8 * 1024 * 1024


@lru_cache(maxsize=4096)
def compile_regex(text: str) -> Any:
    """Compile a pattern over bytes. Raises ValueError that says what is wrong and what is allowed."""
    return compile_within(text, _LIMIT_MEMORY_BYTES)


def compile_within(text: str, memory_bytes: int) -> Any:
    """Compile a pattern as `compile_regex` does, for use with so much memory; nothing is kept."""
    if not text or len(text) > LIMIT_CHARS:
        raise ValueError(f"a pattern has between 1 and {LIMIT_CHARS} characters")
    options = re2.Options()
    options.max_mem = memory_bytes
    options.log_errors = False
    try:
        return re2.compile(text.encode(), options)
    except re2.error as error:
        said = error.args[0].decode(errors="replace") if isinstance(error.args[0], bytes) else str(error)
        raise ValueError(
            f"{text[:100]!r} is not an RE2 pattern ({said}); RE2 has no look-around and no back-references"
        ) from error
