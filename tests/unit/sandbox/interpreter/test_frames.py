"""What an interpreter sends is tool code's word: whatever it is, it is taken within bounds or refused."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandbox.interpreter import inside
from sandbox.interpreter.frames import BadFrames, CellFrames
from sandbox.interpreter.inside.limits import IMAGES_LIMIT_BYTES, OBJECTS_LIMIT, OUTPUT_LIMIT_BYTES, TEXTS_LIMIT_CHARS

CELL = "ab12"


def frame(kind: str, payload: object = b"", cell: str = CELL) -> bytes:
    data = payload if isinstance(payload, bytes) else json.dumps(payload).encode()
    return f"{kind} {cell} {len(data)}\n".encode() + data


BEGUN = frame("begun", {"python": "3.11.2", "between_bytes": 0})


def read(*pieces: bytes) -> CellFrames:
    frames = CellFrames(CELL, lambda _stream, _data: None)
    for piece in pieces:
        frames.feed(piece)
    return frames


def test_a_cell_is_what_its_frames_say() -> None:
    error = {"name": "E", "value": "v", "traceback": "t"}
    whole = BEGUN + frame("out", b"a\xff") + frame("err", b"b") + frame("done", {"count": 3, "error": error})
    for frames in (read(whole), read(*(whole[at : at + 1] for at in range(len(whole))))):
        assert [(piece.stream, piece.data) for piece in frames.output] == [("stdout", b"a\xff"), ("stderr", b"b")]
        assert frames.error is not None
        assert (frames.done, frames.count, frames.error.name) == (True, 3, "E")


def test_what_comes_before_a_cell_and_what_is_of_another_is_passed_over() -> None:
    rest = b"the end of a frame" + frame("out", b"old", "cd34") + frame("done", {"count": 1}, "cd34")
    frames = read(rest, BEGUN, frame("out", b"old", "cd34"), frame("out", b"new"), frame("done", {}))
    assert [piece.data for piece in frames.output] == [b"new"]


@pytest.mark.parametrize(
    "sent",
    [
        b"no frame\n",
        b"x" * 200,
        frame("other", b""),
        f"out {CELL} 999999999\n".encode(),
        frame("done", b"{"),
        frame("done", b"[]"),
        frame("done", b"[" * 100_000),
        frame("data", {"texts": []}),
        frame("data", {"texts": {"text/plain": 3}}),
        frame("data", {"texts": {"application/x-other": ""}}),
        frame("image", b"png"),
        frame("data", {"texts": {}, "image": True}) + frame("image", b"1") + frame("image", b"2"),
        frame("data", {"texts": {}}) * (OBJECTS_LIMIT + 1),
        frame("data", {"texts": {"text/plain": "x" * (TEXTS_LIMIT_CHARS // 2 + 4000)}}) * 2,
        frame("out", b"x" * (64 * 1024)) * (OUTPUT_LIMIT_BYTES // (64 * 1024) + 4),
        (frame("data", {"texts": {}, "image": True}) + frame("image", b"x" * (IMAGES_LIMIT_BYTES // 2 + 1))) * 2,
    ],
)
def test_what_is_no_frame_or_past_a_bound_is_refused(sent: bytes) -> None:
    with pytest.raises(BadFrames):
        read(BEGUN, sent)


def test_an_object_of_many_values_is_refused_before_it_is_decoded() -> None:
    shown = read(BEGUN, frame("data", {"texts": {"text/plain": "[{," * 1000, "text/html": '"[' * 1000}}))
    assert len(shown.objects) == 1
    with pytest.raises(BadFrames, match="too many values"):
        read(BEGUN, frame("done", b'{"a": [' + b"[]," * 1000 + b"1]}"))


def test_many_small_pieces_are_joined() -> None:
    pieces = (frame("out", b"a") + frame("err", b"b")) * 20_000
    frames = read(BEGUN, frame("out", b"a") * 100, pieces)
    assert len(frames.output) < 6000
    for stream, data in (("stdout", b"a" * 20_100), ("stderr", b"b" * 20_000)):
        assert b"".join(piece.data for piece in frames.output if piece.stream == stream) == data
    assert [piece.data for piece in frames.output[:3]] == [b"a" * 101, b"b", b"a"]


def test_one_that_never_begins_is_not_read_for_ever() -> None:
    with pytest.raises(BadFrames, match="does not answer"):
        read(*[frame("out", b"x" * 2**20, "cd34")] * 30)


def test_figures_and_texts_are_brought_into_bounds() -> None:
    error = {"name": "n" * 10_000, "value": 3, "traceback": "\ud800"}
    frames = read(BEGUN, frame("done", {"count": 10**40, "left_out": -1, "error": error}))
    assert (frames.count, frames.left_out_objects) == (2**31, 0)
    assert frames.error is not None
    assert (len(frames.error.name), frames.error.value, frames.error.traceback) == (200, "", "?")


def test_what_runs_in_a_sandbox_is_python_3_8() -> None:
    for path in Path(inside.__file__).parent.glob("*.py"):
        ast.parse(path.read_text(encoding="utf-8"), feature_version=(3, 8))


@given(st.lists(st.binary(max_size=200), max_size=20))
def test_no_bytes_raise_anything_else(pieces: list[bytes]) -> None:
    for before in ((), (BEGUN,)):
        try:
            read(*before, *pieces)
        except BadFrames:
            continue
