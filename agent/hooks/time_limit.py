"""A time limit that costs nothing where there is no wait: most hooks answer at once."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Coroutine, Generator
from types import CoroutineType
from typing import Any, Generic, TypeVar

_Given = TypeVar("_Given")


async def within(limit: asyncio.Timeout, work: Awaitable[_Given]) -> _Given:
    """Return what `work` gives. From its first wait on it is under the limit, whose time has run since it was made."""
    if not isinstance(work, CoroutineType):
        async with limit:
            return await work
    try:
        waits_for = work.send(None)
    except StopIteration as ended:
        given: _Given = ended.value
        return given
    async with limit:
        return await _Begun(work, waits_for)


class _Begun(Generic[_Given]):
    """A coroutine that has made its first step, and waits for something."""

    def __init__(self, work: Coroutine[Any, Any, _Given], waits_for: object) -> None:
        self._work = work
        self._waits_for = waits_for

    def __await__(self) -> Generator[Any, Any, _Given]:
        waits_for = self._waits_for
        while True:
            try:
                try:
                    sent = yield waits_for
                except GeneratorExit:
                    self._work.close()
                    raise
                except BaseException as error:  # a cancellation, or what the thing that it waited for raised
                    waits_for = self._work.throw(error)
                else:
                    waits_for = self._work.send(sent)
            except StopIteration as ended:
                given: _Given = ended.value
                return given
