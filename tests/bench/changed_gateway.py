"""A gateway that a bench runs with changes of its own: `python -m MODULE airlock` is `airlock` with them."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AbstractContextManager
from typing import Any
from unittest import mock

from rich.console import Console
from rich.table import Table

from tests import gateway_process


def changed_by(module: str) -> AbstractContextManager[object]:
    """Have the gateways of a block served with the changes of a module."""
    return mock.patch.object(gateway_process, "AIRLOCK", (sys.executable, "-m", module, "airlock"))


def run(airlock: Callable[[], None], tables: Callable[[], Coroutine[Any, Any, Sequence[Table]]]) -> None:
    """Be `airlock` with the changes if that is asked for, else print the tables."""
    if sys.argv[1:2] == ["airlock"]:
        del sys.argv[1]
        airlock()
        return
    for shown in asyncio.run(tables()):
        Console(width=110).print(shown)
