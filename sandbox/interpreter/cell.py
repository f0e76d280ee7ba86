"""What an interpreter is asked to run, and its result. The sandbox made the result: only its size can be relied on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from sandbox.protocols import OutputPiece


@dataclass(frozen=True, slots=True)
class Cell:
    """Code for the `interpreter` of that context. Without code nothing runs; with `restart` it is ended first.

    `timeout_s` begins when the code does. `live_limit_bytes` of its output are shown while it runs.
    """

    code: str
    interpreter: str = "default"
    restart: bool = False
    timeout_s: float = 120.0
    live_limit_bytes: int = 80_000


@dataclass(frozen=True, slots=True)
class ShownObject:
    """An object that the code showed: its texts by media type, and an image, b"" for none.

    `is_result` says that it is the value of the cell's last expression.
    """

    texts: Mapping[str, str]
    image: bytes = b""
    is_result: bool = False


@dataclass(frozen=True, slots=True)
class CellError:
    """The exception that ended the code."""

    name: str
    value: str
    traceback: str


@dataclass(frozen=True, slots=True)
class CellResult:
    """How a cell ended.

    `outcome` is completed, failed (an exception), timed_out, or how the interpreter itself ended or was not had, as in
    agent/filesystem.py; `exit_code` is set for exited. `output` is the whole output or, if `left_out_bytes` is not 0,
    its head; `tail` is then its end. `count` numbers the cells of an interpreter, from 1. `notes` are for the model.
    """

    outcome: str
    exit_code: int | None = None
    output: tuple[OutputPiece, ...] = ()
    tail: tuple[OutputPiece, ...] = ()
    left_out_bytes: int = 0
    objects: tuple[ShownObject, ...] = ()
    left_out_objects: int = 0
    error: CellError | None = None
    count: int | None = None
    notes: tuple[str, ...] = field(default=())
