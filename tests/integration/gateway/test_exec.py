"""`airlock exec`, `tool call --check` and `files read` as shells and terminals see them, against a real gateway."""

from __future__ import annotations

import json
import os
import pty
import subprocess
from pathlib import Path
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

import gateway
from tests.gateway_process import AIRLOCK
from tests.integration.gateway.conftest import Pair
from tests.integration.gateway.test_cli_resources import env_of


def ran(pair: Pair, *arguments: str, key: str = "", stdin: bytes | None = None) -> subprocess.CompletedProcess[bytes]:
    environment = {**os.environ, **env_of(pair), **({"AIRLOCK_API_KEY": key} if key else {})}
    given: dict[str, Any] = {"stdin": subprocess.DEVNULL} if stdin is None else {"input": stdin}
    return subprocess.run(
        [*AIRLOCK, *arguments], capture_output=True, check=False, timeout=120, env=environment, **given
    )


def on_a_terminal(pair: Pair, *arguments: str) -> str:
    """Return what a command writes to a real terminal."""
    reader, writer = pty.openpty()
    try:
        subprocess.run(
            [*AIRLOCK, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=writer,
            stderr=writer,
            check=True,
            timeout=120,
            env={**os.environ, **env_of(pair), "TERM": "xterm"},
        )
        os.write(writer, b"\x04end")
        said = b""
        while not said.endswith(b"\x04end"):
            said += os.read(reader, 65536)
        return said.removesuffix(b"\x04end").decode()
    finally:
        os.close(reader)
        os.close(writer)


def test_exec_exits_as_the_command_did_and_keeps_its_streams_apart(pair: Pair) -> None:
    both = ran(pair, "exec", "--thread", "exec", "--", "sh", "-c", r"printf 'a\033[2J\377'; echo e >&2; exit 7")
    assert (both.returncode, both.stdout, both.stderr) == (7, b"a\x1b[2J\xff", b"e\n")
    assert ran(pair, "exec", "--thread", "exec", "--", "true").returncode == 0
    killed = ran(pair, "exec", "--thread", "exec", "--", "sh", "-c", "kill -9 $$")
    assert killed.returncode == 128 + 9
    reported = ran(pair, "exec", "--thread", "exec", "--json", "--", "sh", "-c", "echo x; exit 3")
    assert reported.returncode == 3
    assert {name: json.loads(reported.stdout)[name] for name in ("outcome", "exit_code", "stdout")} == {
        "outcome": "exited", "exit_code": 3, "stdout": "x\n",
    }  # fmt: skip


def test_exec_passes_standard_input_on(pair: Pair) -> None:
    data = bytes(range(256)) * 2000
    piped = ran(pair, "exec", "--thread", "exec", "-i", "--", "cat", stdin=data)
    assert (piped.returncode, piped.stdout) == (0, data)
    assert ran(pair, "exec", "--thread", "exec", "--", "cat").stdout == b""


def test_exec_exits_126_denied_124_timed_out_and_125_otherwise(pair: Pair) -> None:
    denied = ran(pair, "exec", "--thread", "exec", "--", "rm", "-rf", "x", key=pair.other_key)
    assert denied.returncode == 126
    assert b"denied" in denied.stderr.lower() or b"rule" in denied.stderr
    late = ran(pair, "exec", "--thread", "exec", "--timeout-s", "0.5", "--", "sleep", "60")
    assert (late.returncode, b"timed_out" in late.stderr) == (124, True)
    assert ran(pair, "exec", "--thread", "exec", "--", "no-such-program").returncode == 125
    assert ran(pair, "exec", "--thread", "exec", "--", "true", key="alk_nobody").returncode == 125
    assert ran(pair, "exec", "--no-such-option", "--", "true").returncode == 125
    assert ran(pair, "exec", "--address", "127.0.0.1:1", "--", "true").returncode == 125


def test_a_checked_tool_call_exits_as_its_command_did(pair: Pair) -> None:
    def code(name: str, arguments: dict[str, object], *options: str, key: str = "") -> int:
        return ran(pair, "tool", "call", name, json.dumps(arguments), "--thread", "exec", *options, key=key).returncode

    assert code("execute", {"command": "exit 7"}, "--check") == 7
    assert code("execute", {"command": "exit 7"}) == 0
    assert code("execute", {"command": "true"}, "--check") == 0
    assert code("execute", {"command": "sleep 60", "timeout_s": 1}, "--check", "--json") == 124
    assert code("execute", {"command": "rm -rf x"}, "--check", key=pair.other_key) == 126
    assert code("no_such_tool", {}, "--check") == 126  # no rule allows it
    assert code("read_file", {"path": "no-such-file"}, "--check") == 125


def test_what_a_file_and_a_command_say_is_raw_in_a_pipe_and_safe_on_a_terminal(pair: Pair, tmp_path: Path) -> None:
    hostile = b"\x1b]0;title\x07\x1b[2J\xc2\x9b31m\xe2\x80\xaehidden\n"
    (tmp_path / "in").write_bytes(hostile)
    ran(pair, "files", "write", str(tmp_path / "in"), "hostile", "--thread", "exec")
    assert ran(pair, "files", "read", "hostile", "--thread", "exec").stdout == hostile
    call = ("tool", "call", "execute", '{"command": "cat hostile"}', "--thread", "exec")
    assert ran(pair, *call).stdout == hostile
    for command in (
        ("files", "read", "hostile", "--thread", "exec"),
        ("exec", "--thread", "exec", "--", "cat", "hostile"),
        call,
        (*call, "--json"),
    ):
        said = on_a_terminal(pair, *command)
        assert "hidden" in said
        # rich's own colours are the only escape sequences.
        assert not [bad for bad in ("\x1b]", "\x07", "\x1b[2J", "\x9b", "\u202e") if bad in said], command


def test_health_says_which_release_answers(pair: Pair) -> None:
    with grpc.insecure_channel(pair.address) as channel:
        _, call = health_pb2_grpc.HealthStub(channel).Check.with_call(health_pb2.HealthCheckRequest(), timeout=30)
    assert dict(call.trailing_metadata())["airlock-version"] == gateway.__version__
