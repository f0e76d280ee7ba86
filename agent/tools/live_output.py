"""Output shown while a program runs, through the filters of the hooks that redact."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Iterable, Sequence

from agent.filesystem import OnOutput, OutputStream, joined
from agent.hooks.hook import Hook, OutputFilter

_STREAMS: tuple[OutputStream, ...] = ("stdout", "stderr")
_log = logging.getLogger(__name__)


def output_filters(hooks: Iterable[Hook]) -> list[OutputFilter] | None:
    """Return new filters for one call, the innermost first.

    None if a hook redacts without a filter, or fails to make one: then nothing is shown before the result.
    """
    filters: list[OutputFilter] = []
    for hook in hooks:
        if not hook.redacts:
            continue
        try:
            made = hook.output_filter()
        except Exception:  # any hook may fail: without its filter nothing is shown live
            _log.exception("the output filter of %s could not be made", hook.name)
            made = None
        if made is None:
            return None
        filters.append(made)
    return filters[::-1]


async def filtered(
    filters: Sequence[OutputFilter], stream: OutputStream, data: bytes, *, cut: bool | None = None
) -> bytes:
    """Return bytes of a stream after the filters; with `cut` given, they end the stream."""
    for filter_ in filters:
        passed = b""
        if data:
            fed = filter_.feed(stream, data)
            passed = fed if isinstance(fed, bytes) else await fed
        if cut is not None:
            rest = filter_.flush(stream, cut=cut)
            passed = joined((passed, rest if isinstance(rest, bytes) else await rest))
        data = passed
    return data


class LiveOutput:
    """Shows a call's output, filtered; pieces that wait for the filters are merged.

    After a filter fails nothing more is shown; the result has the rest.
    """

    def __init__(self, filters: Sequence[OutputFilter], shown: OnOutput) -> None:
        self._filters = filters
        self._shown = shown
        self._waiting: deque[tuple[OutputStream, list[bytes]]] = deque()
        self._task: asyncio.Task[None] | None = None
        self._over = False
        self._ended = False

    def __call__(self, stream: OutputStream, data: bytes) -> None:
        """Show a piece, once it is filtered."""
        if self._over or self._ended or not data:
            return
        if not self._filters:
            self._shown(stream, data)
            return
        if self._waiting and self._waiting[-1][0] == stream:
            self._waiting[-1][1].append(data)
        else:
            self._waiting.append((stream, [data]))
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._pass_waiting())

    async def end(self, *, cut: bool) -> None:
        """Show what the filters hold back; `cut`: output is missing. Only the first end counts."""
        if self._ended:
            return
        self._ended = True
        try:
            if self._task is not None:
                await self._task
            for stream in _STREAMS:
                await self._pass(stream, b"", cut=cut)
        finally:
            self._over = True

    async def _pass_waiting(self) -> None:
        while self._waiting:
            stream, pieces = self._waiting.popleft()
            await self._pass(stream, joined(pieces), cut=None)
        self._task = None

    async def _pass(self, stream: OutputStream, data: bytes, *, cut: bool | None) -> None:
        if self._over:
            return
        try:
            data = await filtered(self._filters, stream, data, cut=cut)
        except Exception:  # any filter may fail: nothing more is shown live
            _log.exception("a filter of live output failed")
            self._over = True
            return
        if data:
            self._shown(stream, data)
