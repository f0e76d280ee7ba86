"""A time limit that costs nothing for hooks that return without waiting."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Coroutine, Generator
from types import CoroutineType, coroutine
from typing import Any, TypeVar, cast

_Result = TypeVar("_Result")


async def within(limit: asyncio.Timeout, work: Awaitable[_Result]) -> _Result:
    """Return the result of `work`, under the limit from its first wait on; time counts from the limit's creation."""
    if not isinstance(work, CoroutineType):
        async with limit:
            return await work
    try:
        waits_for = work.send(None)
    except StopIteration as ended:
        return cast(_Result, ended.value)
    async with limit:
        return await _rest(work, waits_for)


@coroutine
def _rest(work: Coroutine[Any, Any, _Result], waits_for: object) -> Generator[Any, Any, _Result]:
    """Run a coroutine that has started and waits for something."""
    while True:
        try:
            try:
                sent = yield waits_for
            except GeneratorExit:
                work.close()
                raise
            except BaseException as error:  # a cancellation, or an error of what it waited for
                waits_for = work.throw(error)
            else:
                waits_for = work.send(sent)
        except StopIteration as ended:
            return cast(_Result, ended.value)
