"""What a service does with the client that blocks, and with directories, against real sandboxes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from airlock import CallFailed, PermissionDenied, SyncClient
from tests.integration.gateway.conftest import Pair

CALLS = {
    "tool call": 'client.call_tool("execute", {"command": "sleep 4711"}, thread="ctrl-c")',
    "streamed": 'client.call_tool("execute", {"command": "sleep 4711"}, thread="ctrl-c", on_output=print)',
    "program": 'client.execute("sleep 4711", thread="ctrl-c")',
}


@pytest.fixture(scope="module")
def client(pair: Pair) -> Iterator[SyncClient]:
    with SyncClient(pair.address, pair.key) as client:
        yield client


def sleepers(client: SyncClient, thread: str) -> int:
    """Return how many sleeps run in a sandbox; `[4]` keeps the command from finding itself."""
    found = client.execute(
        "cat /proc/*/cmdline 2>/dev/null | tr '\\0' ' ' | grep -o 'sleep [4]711' | wc -l", thread=thread
    )
    return int(found.raise_for_status().stdout)


@pytest.mark.parametrize("kind", CALLS)
def test_ctrl_c_ends_the_call_and_what_it_started(pair: Pair, client: SyncClient, kind: str) -> None:
    program = (
        f"from airlock import SyncClient\nclient = SyncClient({pair.address!r}, {pair.key!r})\n"
        f"try:\n    {CALLS[kind]}\nexcept KeyboardInterrupt:\n    print('interrupted', flush=True)\n"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as process:
        deadline = time.monotonic() + 60
        while not sleepers(client, "ctrl-c") and time.monotonic() < deadline:
            assert process.poll() is None
        process.send_signal(signal.SIGINT)
        said, _ = process.communicate(timeout=60)
    assert (said, process.returncode) == ("interrupted\n", 0)
    assert sleepers(client, "ctrl-c") == 0


def test_a_command_has_a_directory_variables_and_input(client: SyncClient) -> None:
    client.make_directory("sync", "/workspace/work")
    options = {"cwd": "/workspace/work", "env": {"WHO": "me and you"}}
    done = client.execute('pwd; echo "$WHO"; wc -c', thread="sync", stdin=iter([b"four", b"more"]), **options)  # type: ignore[arg-type]
    assert done.raise_for_status().stdout.split("\n") == ["/workspace/work", "me and you", "8", ""]


def test_the_policy_judges_the_command_line_of_execute(pair: Pair) -> None:
    with SyncClient(pair.address, pair.other_key) as strict:
        assert strict.execute("ls && echo fine", thread="sync").raise_for_status().stdout == "fine\n"
        with pytest.raises(PermissionDenied):
            strict.execute("rm -rf /workspace/x", thread="sync")
        denied = strict.call_tool("execute", {"command": "rm x"}, thread="sync")
        with pytest.raises(PermissionDenied) as refused:
            denied.raise_for_status()
        assert refused.value.details["rule"] == denied.rule


def test_a_failure_is_raised_with_its_exit_code_and_what_it_said(client: SyncClient) -> None:
    with pytest.raises(CallFailed, match="exited 3: no luck") as failed:
        client.execute("echo no luck >&2; exit 3", thread="sync").raise_for_status()
    assert failed.value.details == {"outcome": "exited", "exit_code": "3"}
    called = client.call_tool("execute", {"command": "echo out; exit 4"}, thread="sync")
    with pytest.raises(CallFailed, match="exited 4: out"):
        called.raise_for_status()
    with pytest.raises(CallFailed, match="failed"):
        client.call_tool("read_file", {"path": "/workspace/none"}, thread="sync").raise_for_status()
    assert client.call_tool("ls", {"path": "/workspace"}, thread="sync").raise_for_status().outcome == "completed"


def test_a_directory_goes_there_and_comes_back(client: SyncClient, tmp_path: Path) -> None:
    project = tmp_path / "project"
    files = {"a.bin": os.urandom(3_000_000), "src/deep/b.py": b"print(1)\n", ".hidden": b"", "ünï çödé": b"x"}
    for name, data in files.items():
        (project / name).parent.mkdir(parents=True, exist_ok=True)
        (project / name).write_bytes(data)
    (project / "empty").mkdir()
    sent = client.upload("dirs", project)
    assert (sent.files, sent.size_bytes, sent.skipped) == (4, sum(map(len, files.values())), 0)
    client.execute("chmod u+s,a+x project/a.bin; ln -s /etc/passwd project/link", thread="dirs").raise_for_status()
    back = tmp_path / "back"
    got = client.download("dirs", "/workspace/project", back)
    assert (got.files, got.size_bytes, got.skipped) == (4, sent.size_bytes, 1)
    assert {str(one.relative_to(back)): one.read_bytes() for one in back.rglob("*") if one.is_file()} == files
    assert (back / "empty").is_dir()
    assert (back / "a.bin").stat().st_mode & 0o7111 == 0o111
    assert client.download("dirs", "project/src/deep/b.py", tmp_path / "new" / "b.py").files == 1
    assert (tmp_path / "new" / "b.py").read_bytes() == b"print(1)\n"
