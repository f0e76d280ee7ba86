"""The interpreter of execute_python: cells come in on stdin, frames go out on stdout.

In, one JSON object a line: {"run": ID, "code": TEXT, "taken": N, "env": {...}} runs a cell; {"taken": N} says how many
bytes of frames the reader has taken. Out, frames: a line "KIND ID SIZE", then SIZE bytes. Kinds: begun, out, err, gap,
data, image, done, busy.
"""

from __future__ import annotations

import base64
import builtins
import importlib.util
import io
import json
import os
import queue
import signal
import sys
import threading
import traceback
import types
import warnings
from typing import Any

from sandbox.interpreter.inside.channel import Frames, Output
from sandbox.interpreter.inside.limits import IMAGES_LIMIT_BYTES, OBJECTS_LIMIT, TEXTS_LIMIT_CHARS
from sandbox.interpreter.inside.shells import IMAGES, TEXTS, IPythonShell, PlainShell, repr_of

_NO_INPUT = "input() is not available: put the value into the code, or read it from a file"
_TRACEBACK_CHARS = 50_000


class Interpreter:
    """Runs one cell after the other in the main thread, which signals reach."""

    def __init__(self, frames: Frames, *, ipython: bool) -> None:
        self._frames = frames
        self._output = Output(frames)
        self.running = threading.Event()
        self._pid = os.getpid()
        self._cell = ""
        self._interruptible = False
        self._env: dict[str, str] = {}
        self._objects_left = self._text_chars_left = self._image_bytes_left = 0
        self._objects_left_out = 0
        module = types.ModuleType("__main__")
        sys.modules["__main__"] = module
        self._without = ""
        self._shell: Any = None
        if ipython:
            try:
                self._shell = IPythonShell(module, self._show)
            except Exception as error:  # of whatever version it is
                self._without = f"without IPython, which does not start: {error!r}"[:300]
        if self._shell is None:
            self._shell = PlainShell(module.__dict__, self._show)
        builtins.input = _no_input

    def run(self, asked: dict[str, Any]) -> None:
        """Run a cell and say how it ended."""
        cell = self._cell = asked["run"]
        self._objects_left, self._objects_left_out = OBJECTS_LIMIT, 0
        self._text_chars_left, self._image_bytes_left = TEXTS_LIMIT_CHARS, IMAGES_LIMIT_BYTES
        self._prepare(asked.get("env", {}))
        moved = _leave_removed_directory()
        version = ".".join(map(str, sys.version_info[:3]))
        shell = "IPython" if isinstance(self._shell, IPythonShell) else self._without
        self._output.begin(cell, python=", ".join(filter(None, (version, shell))), moved=moved)
        error = self._run(asked["code"])
        if os.getpid() != self._pid:
            self._end_fork(error)
        self._show_figures()
        self._output.end()
        self.running.clear()  # before the gateway can know: its next cell may come at once
        self._frames.send_json(
            "done",
            cell,
            count=self._shell.count,
            error=None if error is None else self._described(error),
            left_out=self._objects_left_out,
        )
        self._cell = ""

    def _run(self, code: str) -> BaseException | None:
        error: BaseException | None = None
        try:
            self._interruptible = True
            try:
                error = self._shell.run(code)
            finally:
                self._interruptible = False
        except BaseException as raised:  # an interrupt just before or after the code
            self._interruptible = False
            error = raised
        return error

    def _prepare(self, env: dict[str, str]) -> None:
        """Undo what the cell before did to what this interpreter itself needs; set the variables of this call."""
        signal.signal(signal.SIGINT, self._interrupt)
        self._output.take_descriptors()
        for name in self._env:
            if name not in env:
                os.environ.pop(name, None)
        os.environ.update(env)
        self._env = env

    def _interrupt(self, _number: int, _frame: Any) -> None:
        if self._interruptible:
            raise KeyboardInterrupt

    def _end_fork(self, error: BaseException | None) -> None:
        """End a process that the code forked and that came out of the cell, too: only the first one serves."""
        try:
            if isinstance(error, Exception):  # not for an interrupt, which reached all of them
                traceback.print_exception(type(error), error, error.__traceback__)
            sys.stdout.flush()
        finally:
            os._exit(0 if error is None else 1)

    def _described(self, error: BaseException) -> dict[str, str]:
        try:
            text = self._shell.traceback_of(error)
        except Exception as failed:  # an exception can have any str()
            text = f"{type(error).__name__}, whose traceback could not be made: {type(failed).__name__}"
        try:
            value = str(error)
        except Exception:  # the same
            value = ""
        return {
            "name": type(error).__name__[:200],
            "value": value[:4000],
            "traceback": _middle_cut(text, _TRACEBACK_CHARS),
        }

    def _show(self, bundle: dict[str, Any], is_result: bool) -> None:
        """Send an object that the code shows; an interrupt waits until that is done."""
        interruptible, self._interruptible = self._interruptible, False
        try:
            self._send(bundle, is_result=is_result)
        finally:
            self._interruptible = interruptible

    def _send(self, bundle: dict[str, Any], *, is_result: bool) -> None:
        if not self._cell or os.getpid() != self._pid:
            return
        if not self._objects_left:
            self._objects_left_out += 1
            return
        self._objects_left -= 1
        self._output.flush()
        texts: dict[str, str] = {}
        for media_type in ("text/plain", *TEXTS):
            shown = bundle.get(media_type)
            if shown is None:
                continue
            text = shown if isinstance(shown, str) else json.dumps(shown, default=repr_of)
            if media_type == "text/plain":
                text = _middle_cut(text, max(0, self._text_chars_left // 2))
            if len(text) <= self._text_chars_left:  # half of another one would be no document
                texts[media_type] = text
                self._text_chars_left -= len(text)
        image = next((_bytes_of(bundle[one]) for one in IMAGES if bundle.get(one)), b"")
        if len(image) > self._image_bytes_left:
            self._objects_left_out += 1
            image = b""
        self._image_bytes_left -= len(image)
        self._frames.send_json("data", self._cell, result=is_result, texts=texts, image=bool(image))
        if image:
            self._frames.send("image", self._cell, image)

    def _show_figures(self) -> None:
        """Show the figures that the cell has drawn, and close them, as notebooks do."""
        pyplot = sys.modules.get("matplotlib.pyplot")
        if pyplot is None:
            return
        try:
            for number in pyplot.get_fignums():
                figure, data = pyplot.figure(number), io.BytesIO()
                figure.savefig(data, format="png", bbox_inches="tight")
                self._show({"text/plain": repr_of(figure), "image/png": data.getvalue()}, False)
            pyplot.close("all")
        except Exception:  # a figure that cannot be drawn
            traceback.print_exc()


def _bytes_of(image: Any) -> bytes:
    """Return the bytes of an image, which IPython gives as base64."""
    if isinstance(image, bytes):
        return image
    try:
        return base64.b64decode(image)
    except (TypeError, ValueError):
        return b""


def _no_input(_prompt: object = "") -> str:
    raise RuntimeError(_NO_INPUT)


def _middle_cut(text: str, limit: int) -> str:
    if len(text) <= limit:
        return text
    half = limit // 2
    return f"{text[:half]}\n[... {len(text) - 2 * half:,} characters left out ...]\n{text[-half:]}"


def _leave_removed_directory() -> str:
    """Leave a working directory that is gone; return where to, "" if it is there."""
    try:
        os.getcwd()
    except OSError:
        there = _HOME if os.path.isdir(_HOME) else "/"
        os.chdir(there)
        return there
    return ""


_HOME = os.getcwd()


def main() -> None:
    """Serve until stdin ends."""
    asked, answers = os.dup(0), os.dup(1)  # what the code starts does not inherit them
    nothing, closed = os.pipe()
    os.close(closed)
    os.dup2(nothing, 0)
    sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115 - as long as the interpreter lives
    sys.argv = [""]
    os.environ.setdefault("MPLBACKEND", "Agg")
    for noise in (".*is non-interactive, and thus cannot be shown", "To exit: use 'exit'"):
        warnings.filterwarnings("ignore", message=noise)
    frames = Frames(answers)
    interpreter = Interpreter(frames, ipython=importlib.util.find_spec("IPython") is not None)
    sys.path.insert(0, "")  # last: until now a json.py of the workspace was not to be ours
    cells: queue.Queue[dict[str, Any] | None] = queue.Queue()

    def read() -> None:
        with open(asked, "rb") as lines:
            for line in lines:
                said = json.loads(line)
                frames.taken(said.get("taken", 0))
                if "run" in said and interpreter.running.is_set():
                    frames.send_json("busy", said["run"])
                elif "run" in said:
                    interpreter.running.set()
                    cells.put(said)
        cells.put(None)

    threading.Thread(target=read, daemon=True).start()
    while True:
        cell = cells.get()
        if cell is None:
            return
        interpreter.run(cell)
