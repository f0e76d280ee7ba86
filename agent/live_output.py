"""Output shown while a program runs, through the filters of the hooks that redact."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence

from agent.filesystem import OnOutput, OutputStream
from agent.hook import Hook, OutputFilter

_STREAMS: tuple[OutputStream, ...] = ("stdout", "stderr")
_log = logging.getLogger(__name__)


def output_filters(hooks: Iterable[Hook]) -> list[OutputFilter] | None:
    """Return new filters for one call, the innermost first; None where a hook redacts without one, or fails to make it.

    Then nothing may be shown before the result.
    """
    filters: list[OutputFilter] = []
    for hook in hooks:
        if not hook.redacts:
            continue
        try:
            made = hook.output_filter()
        except Exception:  # a hook of anybody's: without its filter nothing is shown live
            _log.exception("the output filter of %s could not be made", hook.name)
            made = None
        if made is None:
            return None
        filters.append(made)
    return filters[::-1]


class LiveOutput:
    """Passes a call's output on, filtered. Once a filter has failed nothing more is shown; the result has the rest."""

    def __init__(self, filters: Sequence[OutputFilter], shown: OnOutput) -> None:
        self._filters = filters
        self._shown = shown
        self._over = False

    def __call__(self, stream: OutputStream, data: bytes) -> None:
        """Take a piece as it arrives."""
        if not self._over:
            self._pass(stream, data, cut=None)

    def end(self, *, cut: bool) -> None:
        """Show what was held back; `cut` says that more had been written than came here. Only the first end counts."""
        for stream in _STREAMS:
            if not self._over:
                self._pass(stream, b"", cut=cut)
        self._over = True

    def _pass(self, stream: OutputStream, data: bytes, *, cut: bool | None) -> None:
        try:
            for filter_ in self._filters:
                data = filter_.feed(stream, data) if data else b""
                if cut is not None:
                    data += filter_.flush(stream, cut=cut)
        except Exception:  # a filter of anybody's: nothing more is shown live
            _log.exception("a filter of live output failed")
            self._over = True
            return
        if data:
            self._shown(stream, data)
