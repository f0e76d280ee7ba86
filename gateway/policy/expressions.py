"""`when`: a condition in CEL, the Common Expression Language. It has no loops but over what the call holds."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import cel


@lru_cache(maxsize=4096)
def compile_expression(text: str) -> Any:
    """Compile an expression. Raises ValueError that says what is wrong."""
    return cel.compile(text)
