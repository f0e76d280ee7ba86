"""Frames to the gateway, and what code writes to descriptors 1 and 2, which becomes frames, too."""

from __future__ import annotations

import array
import collections
import fcntl
import io
import json
import os
import select
import sys
import termios
import threading
from typing import Any

from sandbox.interpreter.inside.limits import OUTPUT_LIMIT_BYTES, TAIL_BYTES, WINDOW_BYTES

_PIECE_BYTES = 64 * 1024


class Frames:
    """Writes frames in a thread of its own, never more than a window ahead of the reader."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._more = threading.Condition()
        self._waiting: collections.deque[bytes] = collections.deque()
        self._sent_bytes = self._taken_bytes = 0
        threading.Thread(target=self._write, daemon=True).start()

    def send(self, kind: str, cell: str, payload: bytes = b"") -> None:
        with self._more:
            self._waiting.append(b"%s %s %d\n" % (kind.encode(), cell.encode(), len(payload)))
            self._waiting.append(payload)
            self._more.notify()

    def send_json(self, kind: str, cell: str, **values: Any) -> None:
        self.send(kind, cell, json.dumps(values, ensure_ascii=False).encode("utf-8", "backslashreplace"))

    def taken(self, size_bytes: int) -> None:
        with self._more:
            self._taken_bytes = max(self._taken_bytes, size_bytes)
            self._more.notify()

    def _write(self) -> None:
        while True:
            with self._more:
                while not self._waiting or self._sent_bytes - self._taken_bytes >= WINDOW_BYTES:
                    self._more.wait()
                room = WINDOW_BYTES - (self._sent_bytes - self._taken_bytes)
                frame = self._waiting.popleft()
                piece, rest = frame[:room], frame[room:]
                if rest:
                    self._waiting.appendleft(rest)
                self._sent_bytes += len(piece)
            try:
                while piece:
                    piece = piece[os.write(self._fd, piece) :]
            except OSError:  # the code has closed every descriptor, this one too
                os._exit(70)


class Output:
    """What is written to descriptors 1 and 2, by whatever: of a cell as frames, between cells kept for the next one."""

    def __init__(self, frames: Frames) -> None:
        self._frames = frames
        self._lock = threading.RLock()
        self._ends: dict[str, tuple[int, int]] = {"out": os.pipe(), "err": os.pipe()}
        self._cell = ""
        self._left_bytes = TAIL_BYTES
        self._left_out_bytes = 0
        self._tail: collections.deque[tuple[str, bytes]] = collections.deque()
        self._tail_bytes = 0
        self._between: list[tuple[str, bytes]] = []
        self.take_descriptors()
        threading.Thread(target=self._read, daemon=True).start()

    def take_descriptors(self) -> None:
        """Have 1 and 2, and the streams over them, lead here: code may have closed or replaced them."""
        for fd, (name, kind) in enumerate((("stdout", "out"), ("stderr", "err")), 1):
            os.dup2(self._ends[kind][1], fd)
            if getattr(sys, f"_airlock_{name}", None) is not getattr(sys, name) or getattr(sys, name).closed:
                raw = io.FileIO(fd, "w", closefd=False)
                made = io.TextIOWrapper(io.BufferedWriter(raw), "utf-8", "backslashreplace", line_buffering=True)
                setattr(sys, name, made)
                setattr(sys, f"_airlock_{name}", made)

    def begin(self, cell: str, **begun: Any) -> None:
        """Say that a cell begins and take output for it; what was written since the one before comes first."""
        self.drain()
        with self._lock:
            between, self._between = self._between, []
            missed = self._left_out_bytes
            self._cell, self._left_bytes, self._left_out_bytes = cell, OUTPUT_LIMIT_BYTES, 0
            between_bytes = missed + sum(len(data) for _, data in between)
            self._frames.send_json("begun", cell, between_bytes=between_bytes, **begun)
            for kind, data in between:
                self._frames.send(kind, cell, data)

    def end(self) -> None:
        """Send what the cell has written until now, and after a gap the end of it."""
        self.flush()
        with self._lock:
            if self._tail:
                self._frames.send("gap", self._cell, b"%d" % (self._left_out_bytes - self._tail_bytes))
            for kind, data in self._tail:
                self._frames.send(kind, self._cell, data)
            self._tail.clear()
            self._cell, self._left_bytes, self._left_out_bytes, self._tail_bytes = "", TAIL_BYTES, 0, 0

    def flush(self) -> None:
        """Take what the code has written until now."""
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except Exception:  # the code may have put anything there
                continue
        self.drain()

    def drain(self) -> None:
        """Read what was written until now; not what is written meanwhile, which may be endless."""
        with self._lock:
            for kind, (reads, _) in self._ends.items():
                size = array.array("i", [0])
                fcntl.ioctl(reads, termios.FIONREAD, size)
                while size[0] > 0:
                    data = os.read(reads, min(size[0], _PIECE_BYTES))
                    size[0] -= len(data)
                    self._add(kind, data)

    def _read(self) -> None:
        kinds = {reads: kind for kind, (reads, _) in self._ends.items()}
        poller = select.poll()
        for reads in kinds:
            poller.register(reads, select.POLLIN)
        while True:
            for reads, _ in poller.poll():
                with self._lock:
                    size = array.array("i", [0])
                    fcntl.ioctl(reads, termios.FIONREAD, size)
                    if size[0]:
                        self._add(kinds[reads], os.read(reads, _PIECE_BYTES))

    def _add(self, kind: str, data: bytes) -> None:
        fits, rest = data[: self._left_bytes], data[self._left_bytes :]
        self._left_bytes -= len(fits)
        if fits and self._cell:
            self._frames.send(kind, self._cell, fits)
        elif fits:
            self._between.append((kind, fits))
        if not rest:
            return
        self._left_out_bytes += len(rest)
        if not self._cell:
            return
        self._tail.append((kind, rest))
        self._tail_bytes += len(rest)
        while self._tail_bytes > TAIL_BYTES:
            kind, first = self._tail.popleft()
            kept = first[len(first) - max(0, len(first) - (self._tail_bytes - TAIL_BYTES)) :]
            self._tail_bytes -= len(first) - len(kept)
            if kept:
                self._tail.appendleft((kind, kept))
