"""What a terminal shows of work that takes longer than a second: what it is, for how long, and how far it has come."""

from __future__ import annotations

import threading
from types import TracebackType
from typing import TYPE_CHECKING, Self

from gateway.cli.terminal import err

if TYPE_CHECKING:
    from rich.progress import Progress

_QUIET_S = 1.0


class SlowWork:
    """A line on standard error, while the block lasts, once that is longer than a second. Programs see nothing of it.

    with SlowWork("verifying the chain") as work:
        work.at(f"{count:,} records")
    """

    def __init__(self, name: str, quiet_s: float = _QUIET_S) -> None:
        self._name = name
        self._at = ""
        self._progress: Progress | None = None
        self._timer = threading.Timer(quiet_s, self._show) if err.is_terminal else None

    def __enter__(self) -> Self:
        if self._timer is not None:
            self._timer.daemon = True
            self._timer.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer.join()
        if self._progress is not None:
            self._progress.stop()

    def at(self, text: str) -> None:
        """Say how far it has come."""
        self._at = text
        progress = self._progress
        if progress is not None and progress.task_ids:
            progress.update(progress.task_ids[0], at=text)

    def _show(self) -> None:
        from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

        said = TextColumn("{task.description} {task.fields[at]}", markup=False)
        progress = self._progress = Progress(SpinnerColumn(), said, TimeElapsedColumn(), console=err, transient=True)
        progress.add_task(self._name, total=None, at=self._at)
        progress.start()
