"""Progress of work that takes longer than a second, on a terminal."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Self

from gateway.cli.terminal import err

if TYPE_CHECKING:
    from rich.progress import Progress, ProgressColumn

_QUIET_S = 1.0


class SlowWork:
    """Shows a line on standard error, if it is a terminal, once the block takes longer than a second.

    with SlowWork("verifying the chain") as work:
        work.at(f"{count:,} records")
    """

    def __init__(self, name: str, quiet_s: float = _QUIET_S) -> None:
        self._name = name
        self._fields: dict[str, Any] = {"total": None, "at": ""}
        self._progress: Progress | None = None
        self._timer = threading.Timer(quiet_s, self._show) if err.is_terminal else None

    def __enter__(self) -> Self:
        if self._timer is not None:
            self._timer.daemon = True
            self._timer.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer.join()
        if self._progress is not None:
            self._progress.stop()

    def at(self, text: str) -> None:
        self._update(at=text)

    def _update(self, **fields: Any) -> None:
        self._fields |= fields
        progress = self._progress
        if progress is not None and progress.task_ids:
            progress.update(progress.task_ids[0], **fields)

    def _show(self) -> None:
        from rich.progress import Progress

        progress = self._progress = Progress(*self._columns(), console=err, transient=True)
        progress.add_task(self._name, **self._fields)
        progress.start()

    def _columns(self) -> Iterable[ProgressColumn]:
        from rich.progress import SpinnerColumn, TextColumn, TimeElapsedColumn

        said = TextColumn("{task.description} {task.fields[at]}", markup=False)
        return SpinnerColumn(), said, TimeElapsedColumn()


class Transfer(SlowWork):
    """Shows how many bytes were transferred, and the total if it is known."""

    def __init__(self, name: str, total_bytes: int | None) -> None:
        super().__init__(name)
        self._fields["total"] = total_bytes
        self.size_bytes = 0

    def moved(self, size_bytes: int) -> None:
        self.size_bytes += size_bytes
        self._update(completed=self.size_bytes)

    def _columns(self) -> Iterable[ProgressColumn]:
        from rich.progress import BarColumn, DownloadColumn, TextColumn, TransferSpeedColumn

        return TextColumn("{task.description}", markup=False), BarColumn(), DownloadColumn(), TransferSpeedColumn()
