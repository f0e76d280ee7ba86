"""A time limit that costs nothing for hooks that return without waiting."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Coroutine, Generator
from types import CoroutineType
from typing import Any, Generic, TypeVar

_Result = TypeVar("_Result")


async def within(limit: asyncio.Timeout, work: Awaitable[_Result]) -> _Result:
    """Return the result of `work`, under the limit from its first wait on; time counts from the limit's creation."""
    if not isinstance(work, CoroutineType):
        async with limit:
            return await work
    try:
        waits_for = work.send(None)
    except StopIteration as ended:
        given: _Result = ended.value
        return given
    async with limit:
        return await _Begun(work, waits_for)


class _Begun(Generic[_Result]):
    """A coroutine that has started and waits for something."""

    def __init__(self, work: Coroutine[Any, Any, _Result], waits_for: object) -> None:
        self._work = work
        self._waits_for = waits_for

    def __await__(self) -> Generator[Any, Any, _Result]:
        waits_for = self._waits_for
        while True:
            try:
                try:
                    sent = yield waits_for
                except GeneratorExit:
                    self._work.close()
                    raise
                except BaseException as error:  # a cancellation, or an error of what it waited for
                    waits_for = self._work.throw(error)
                else:
                    waits_for = self._work.send(sent)
            except StopIteration as ended:
                given: _Result = ended.value
                return given
