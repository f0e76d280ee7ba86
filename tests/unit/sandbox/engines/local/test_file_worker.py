"""LocalFS works in another process, which this one starts, outlives, and replaces when it was killed."""

from __future__ import annotations

import asyncio
import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from sandbox.engines.local import local_fs
from sandbox.engines.local.local_fs import LocalFS
from sandbox.errors import InvalidArgument, NotFound


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "a.txt").write_text("needle\n", encoding="utf-8")
    return tmp_path


async def test_file_calls_run_in_a_worker_and_this_process_never_forks(
    tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse() -> int:
        raise AssertionError("a process with threads must not fork")

    monkeypatch.setattr(os, "fork", refuse)
    files = LocalFS(tree)
    assert [entry.name for entry in (await files.glob("/workspace", "**/*.txt")).entries] == ["/workspace/d/a.txt"]
    assert [match.path for match in (await files.grep("/workspace", "needle")).matches] == ["/workspace/d/a.txt"]
    for number in range(5_001):
        (tree / "d" / f"{number}").touch()
    assert (await files.ls("/workspace/d")).total == 5_002
    await files.remove("/workspace/d", recursive=True)
    with pytest.raises(NotFound):
        await files.stat("/workspace/d")


async def test_errors_are_the_same_as_in_this_process(tree: Path) -> None:
    files = LocalFS(tree)
    with pytest.raises(NotFound, match="/workspace/none"):
        await files.grep("/workspace/none", "x")
    with pytest.raises(InvalidArgument):
        await files.grep("/workspace", "(")


async def test_searches_run_concurrently_and_cancelling_one_ends_it(tree: Path) -> None:
    files = LocalFS(tree)
    (tree / "long").write_text("a" * 40 + "!\n", encoding="utf-8")
    endless = asyncio.create_task(files.grep("/workspace", "^(a+)+$", timeout_s=100))
    found = await asyncio.gather(*(files.glob("/workspace", "d/*") for _ in range(50)))
    assert {len(page.entries) for page in found} == {1}
    server = local_fs._workers[-1]._process.pid
    assert not endless.done()
    endless.cancel()
    with pytest.raises(asyncio.CancelledError):
        await endless
    async with asyncio.timeout(60):
        while Path(f"/proc/{server}/task/{server}/children").read_text(encoding="ascii").split():
            await asyncio.sleep(0.01)


async def test_a_process_that_was_killed_is_replaced(tree: Path) -> None:
    files = LocalFS(tree)
    await files.glob("/workspace", "*")
    server = local_fs._workers[-1]._process
    os.kill(server.pid, signal.SIGKILL)
    server.wait()
    assert len((await files.glob("/workspace", "d/*")).entries) == 1


def test_the_process_ends_with_this_one_however_that_ends(tree: Path) -> None:
    code = (
        "import asyncio, os, signal, sys\n"
        "from pathlib import Path; from sandbox.engines.local.local_fs import LocalFS\n"
        "from sandbox.engines.local import local_fs\n"
        "asyncio.run(LocalFS(Path(sys.argv[1])).glob('/workspace', '*'))\n"
        "print(local_fs._workers[-1]._process.pid, flush=True); os.kill(os.getpid(), signal.SIGKILL)"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tree)], stdout=subprocess.PIPE, check=False)
    assert done.returncode == -signal.SIGKILL
    try:
        server = os.pidfd_open(int(done.stdout))
    except ProcessLookupError:
        return
    with os.fdopen(server):
        assert select.select([server], [], [], 60)[0], "it must end"
