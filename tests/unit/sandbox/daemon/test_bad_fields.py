"""Every bounded field of the file calls and of exec: the most is taken, one more is refused and named."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from sandbox.daemon.failures import Fault
from sandbox.daemon.files import search, tree_files
from sandbox.daemon.files.read_files import read_lines
from sandbox.daemon.programs.exec_request import Program
from sandbox.v1 import channel_pb2 as wire


async def _list(path: str, **fields: Any) -> object:
    return await tree_files.list_directory(wire.ListRequest(path=path, **{"limit": 1, **fields}))


async def _glob(path: str, **fields: Any) -> object:
    return await search.glob(wire.GlobRequest(path=path, **{"limit": 1, "pattern": "*", **fields}), "/x")


async def _grep(path: str, **fields: Any) -> object:
    usual = {"limit": 1, "pattern": "x", "timeout_ms": 10_000}
    return await search.grep(wire.GrepRequest(path=path, **usual | fields), "/x")


async def _lines(path: str, **fields: Any) -> object:
    usual = {"limit": 1, "limit_bytes": 1}
    return await read_lines(wire.ReadLinesRequest(path=f"{path}/f", **usual | fields))


async def _exec(path: str, **fields: Any) -> object:
    return Program(wire.ExecRequest(argv=[b"/bin/true"], **fields), path, {})


def _output(**fields: int) -> dict[str, Any]:
    return {"output_limit": wire.OutputLimit(**{"limit_chars": 2**31, **fields})}


def _env(count: int) -> dict[str, Any]:
    return {"env": {f"N{number}": "" for number in range(count)}}


# call, fields at their most, fields one past it, what the failure names
BAD: list[tuple[Callable[..., Awaitable[object]], dict[str, Any], dict[str, Any], str]] = [
    (_list, {"limit": 10_000}, {"limit": 10_001}, "limit"),
    (_list, {"limit": 1}, {"limit": 0}, "limit"),
    (_glob, {"limit": 10_000}, {"limit": 10_001}, "limit"),
    (_glob, {"pattern": "a" * 4096}, {"pattern": "a" * 4097}, "pattern"),
    (_grep, {"limit": 10_000}, {"limit": 10_001}, "limit"),
    (_grep, {"pattern": "a" * 65_536}, {"pattern": "a" * 65_537}, "pattern"),
    (_grep, {"pattern": "a"}, {"pattern": ""}, "pattern"),
    (_grep, {"include": "a" * 16_384}, {"include": "a" * 16_385}, "include"),
    (_grep, {"timeout_ms": 120_000}, {"timeout_ms": 120_001}, "timeout_ms"),
    (_grep, {"timeout_ms": 1_000}, {"timeout_ms": 0}, "timeout_ms"),
    (_lines, {"limit": 100_000}, {"limit": 100_001}, "limit"),
    (_lines, {"limit_bytes": 1024**2}, {"limit_bytes": 1024**2 + 1}, "limit_bytes"),
    (_exec, _env(4096), _env(4097), "env"),
    (_exec, {"timeout_ms": 604_800_000}, {"timeout_ms": 604_800_001}, "timeout_ms"),
    (_exec, _output(head_chars=150_000), _output(head_chars=150_001), "head_chars"),
    (_exec, _output(tail_chars=150_000), _output(tail_chars=150_001), "tail_chars"),
    (_exec, _output(spill_limit_bytes=64 * 1024**3), _output(spill_limit_bytes=64 * 1024**3 + 1), "spill_limit_bytes"),
    (_exec, _output(spill_quota_bytes=64 * 1024**3), _output(spill_quota_bytes=64 * 1024**3 + 1), "spill_quota_bytes"),
    (
        _exec,
        {"stream": True, "stream_limit_bytes": 1024**4},
        {"stream": True, "stream_limit_bytes": 1024**4 + 1},
        "stream_limit_bytes",
    ),
]


@pytest.mark.parametrize("call, most, past, named", BAD, ids=[f"{n}-{case[3]}" for n, case in enumerate(BAD)])
async def test_a_field_is_taken_at_its_limit_and_refused_and_named_past_it(
    tmp_path: Path,
    call: Callable[..., Awaitable[object]],
    most: dict[str, Any],
    past: dict[str, Any],
    named: str,
) -> None:
    (tmp_path / "f").write_text("x\n")
    await call(str(tmp_path), **most)
    with pytest.raises(Fault, match=rf"\b{named}\b") as refused:
        await call(str(tmp_path), **past)
    assert refused.value.kind == wire.FAILURE_KIND_INVALID_ARGUMENT
