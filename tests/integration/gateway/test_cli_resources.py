"""`airlock files`, `thread` and `runs` against a real gateway, as programs and people call them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.gateway_process import airlock
from tests.integration.gateway.conftest import Pair


def env_of(pair: Pair) -> dict[str, str]:
    return {"AIRLOCK_ADDRESS": pair.address, "AIRLOCK_API_KEY": pair.key}


def reported(pair: Pair, *arguments: str) -> Any:
    return json.loads(airlock(*arguments, "--json", env=env_of(pair)).stdout)


def test_a_file_goes_in_is_listed_and_comes_out_byte_for_byte(pair: Pair, tmp_path: Path) -> None:
    data = bytes(range(256)) * 5000
    (tmp_path / "in").write_bytes(data)
    written = reported(pair, "files", "write", str(tmp_path / "in"), "a/b.bin", "--thread", "cli")
    assert written == {"path": "a/b.bin", "size_bytes": len(data)}
    assert [entry["name"] for entry in reported(pair, "files", "ls", "a", "--thread", "cli")] == ["b.bin"]
    (found,) = reported(pair, "files", "ls", "**/*.bin", "--thread", "cli")
    assert (found["name"], found["kind"], found["size_bytes"]) == ("a/b.bin", "file", len(data))
    read = reported(pair, "files", "read", "a/b.bin", str(tmp_path / "out"), "--thread", "cli")
    assert read["size_bytes"] == len(data)
    assert (tmp_path / "out").read_bytes() == data
    shown = airlock("files", "ls", "a", "--thread", "cli", env=env_of(pair)).stdout
    assert "1,280,000" in shown
    assert "b.bin" in shown


def test_a_file_that_is_not_there_leaves_the_one_here_and_exits_3(pair: Pair, tmp_path: Path) -> None:
    here = tmp_path / "here"
    here.write_bytes(b"mine")
    failed = airlock("files", "read", "nothing", str(here), "--thread", "cli", "--json", env=env_of(pair), check=False)
    assert (failed.returncode, json.loads(failed.stdout)["reason"]) == (3, "NOT_FOUND")
    assert here.read_bytes() == b"mine"
    failed = airlock("files", "write", str(tmp_path / "no"), "x", "--json", env=env_of(pair), check=False)
    assert failed.returncode == 2


def test_a_thread_is_listed_shown_and_deleted(pair: Pair) -> None:
    reported(pair, "tool", "call", "execute", '{"command": "echo x > kept"}', "--thread", "gone-1")
    assert [thread["name"] for thread in reported(pair, "thread", "list", "--prefix", "gone-")] == ["gone-1"]
    assert reported(pair, "thread", "show", "gone-1")["messages"] == 0
    assert airlock("thread", "messages", "gone-1", "--json", env=env_of(pair)).stdout == ""
    removed = reported(pair, "thread", "delete", "gone-1", "--yes")["removed"]
    assert removed["threads"] == removed["tool_calls"] == 1
    assert reported(pair, "thread", "list", "--prefix", "gone-") == []
    anew = reported(pair, "tool", "call", "execute", '{"command": "cat kept"}', "--thread", "gone-1")
    assert anew["exit_code"] == 1


def test_what_is_kept_with_a_thread_is_set_and_removed(pair: Pair) -> None:
    set_ = reported(pair, "thread", "set", "kept-1", "owner=ada", 'limits={"usd": 3}', "note=a=b")
    assert set_["metadata"] == {"owner": "ada", "limits": {"usd": 3}, "note": "a=b"}
    assert reported(pair, "thread", "set", "kept-1", "--remove", "note")["metadata"].keys() == {"owner", "limits"}
    shown = airlock("thread", "set", "kept-1", "owner=eve", env=env_of(pair)).stdout
    assert 'owner = "eve"' in shown
    for wrong in ((), ("owner",), ("=x",)):
        failed = airlock("thread", "set", "kept-1", *wrong, "--json", env=env_of(pair), check=False)
        assert failed.returncode == 2


def test_a_process_is_started_listed_by_its_state_and_removed(pair: Pair) -> None:
    whose = ("--thread", "cli-process")
    started = airlock(
        "process", "start", *whose, "--env", "WORD=said", "sh", "-c", 'echo "$WORD"; exec sleep 600', env=env_of(pair)
    )
    process_id = started.stdout.strip()
    assert process_id.startswith("proc_")
    assert "airlock process logs" in started.stderr
    ended = airlock("process", "start", *whose, "--id", "short", "--json", "true", env=env_of(pair)).stdout
    assert json.loads(ended)["id"] == "short"

    def listed(*which: str) -> list[str]:
        return [one["id"] for one in reported(pair, "process", "list", *whose, *which)["processes"]]

    assert process_id in listed("--running")
    assert process_id not in listed("--ended")
    assert process_id in listed()
    assert (
        "--env" in airlock("process", "start", *whose, "--env", "novalue", "true", env=env_of(pair), check=False).stderr
    )
    reported(pair, "process", "remove", process_id, *whose)
    assert process_id not in listed()


def test_runs_are_looked_for_and_what_is_wrong_is_said(pair: Pair) -> None:
    assert reported(pair, "runs", "list", "--thread", "never", "--status", "failed") == []
    for arguments, code in (
        (("runs", "get", "run_none"), 3),
        (("runs", "watch", "run_none"), 3),
        (("runs", "cancel", "run_none"), 3),
        (("runs", "list", "--since", "yesterday"), 2),
    ):
        failed = airlock(*arguments, "--json", env=env_of(pair), check=False)
        assert (failed.returncode, arguments) == (code, arguments)
        assert json.loads(failed.stdout)["error"]
    assert "`airlock runs list`" in airlock("runs", "get", "run_none", env=env_of(pair), check=False).stderr
    assert airlock("runs", "list", "--status", "gone", env=env_of(pair), check=False).returncode == 2
