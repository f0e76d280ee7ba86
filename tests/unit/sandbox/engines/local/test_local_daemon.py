"""The daemon as a plain process: whose it is, what it may see, and that it leaves nothing behind."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from sandbox.client.channel import Channel
from sandbox.client.unix_address import UnixAddress
from sandbox.daemon.supervisor.call_tree import is_dead, read_status
from sandbox.engines.local import local_process
from sandbox.engines.local.local_tree import descendants
from sandbox.engines.local.memory_engine import MemoryEngine
from sandbox.errors import InvalidPath, NotFound, SandboxUnavailable
from sandbox.protocols import ExecResult, Shell
from sandbox.sandbox import Sandbox, SandboxSpec
from sandbox.transition import Transition
from tests.sandbox_keeper import make_keeper

SPEC = SandboxSpec("tenant", "thread", "any-image")
REPOSITORY = Path(__file__).parents[5]
_OUTER_S = 60.0


@pytest.fixture
async def engine(tmp_path: Path) -> AsyncIterator[MemoryEngine]:
    made = MemoryEngine(root=tmp_path)
    yield made
    await made.close()


@pytest.fixture
async def sandbox(engine: MemoryEngine) -> Sandbox:
    return await engine.create(SPEC)


async def run(shell: Shell, command: str, *, timeout_s: float = 60) -> ExecResult:
    return await shell.execute(
        command, timeout_s=timeout_s, call_id="c1", limit_chars=80_000, head_chars=2_000, tail_chars=2_000
    )


def text(result: ExecResult) -> str:
    return b"".join(piece.data for piece in result.output).decode()


def lives(pid: int) -> bool:
    status = read_status(pid)
    return status is not None and not is_dead(status)


async def until_gone(*pids: int) -> None:
    async with asyncio.timeout(_OUTER_S):
        while any(lives(pid) for pid in pids):
            await asyncio.sleep(0.01)


async def guard_of(sandbox: Sandbox) -> int:
    """Return the first process of a sandbox, which leads the session of its daemon."""
    tool_spawner = int(text(await run(sandbox.shell, "echo $PPID")))
    return os.getsid(tool_spawner)


async def test_what_hides_from_its_call_is_a_stray_that_is_counted_and_killed(sandbox: Sandbox) -> None:
    hidden = "(env -i setsid sh -c 'echo $$ >> pids; sleep 3600 & echo $! >> pids; wait' >/dev/null 2>&1 &)"
    await run(sandbox.shell, f"{hidden}; until test $(wc -l < pids) = 2; do sleep 0.01; done 2>/dev/null")
    pids = [int(line) for line in text(await run(sandbox.shell, "cat pids")).split()]
    assert all(lives(pid) for pid in pids)
    assert (await sandbox.processes.list()).strays == 2
    await sandbox.processes.signal("", signal.SIGKILL, tree=True)
    await until_gone(*pids)
    assert (await sandbox.processes.list()).strays == 0


async def test_a_call_that_runs_out_of_time_takes_what_cleared_its_environment_with_it(sandbox: Sandbox) -> None:
    pretending = "AIRLOCK_CALL=1/7 setsid sleep 3600"  # as the programs of a sandbox in a sandbox do
    command = f"env -i setsid sleep 3600 & echo $! > pids; {pretending} & echo $! $$ >> pids; sleep 3600"
    assert (await run(sandbox.shell, command, timeout_s=0.5)).outcome == "timed_out"
    pids = [int(pid) for pid in text(await run(sandbox.shell, "cat pids")).split()]
    assert len(pids) == 3
    assert not any(lives(pid) for pid in pids)


@pytest.mark.parametrize("which", ["guard", "daemon"])
async def test_a_sandbox_whose_first_processes_are_killed_ends_and_the_next_call_has_another(
    engine: MemoryEngine, sandbox: Sandbox, which: str
) -> None:
    guard = await guard_of(sandbox)
    pids = descendants(guard)
    daemon = next(pid for pid in pids if b"\nPPid:\t%d\n" % guard in (read_status(pid) or b""))
    os.kill(guard if which == "guard" else daemon, signal.SIGKILL)
    await until_gone(guard, *pids)
    assert (await run(sandbox.shell, "true")).outcome == "daemon_lost"
    again = await engine.create(SPEC)
    assert again.id != sandbox.id
    assert (await run(again.shell, "true")).exit_code == 0


async def test_nothing_runs_of_a_sandbox_that_was_removed(engine: MemoryEngine, sandbox: Sandbox) -> None:
    await run(sandbox.shell, "(env -i setsid sleep 3600 >/dev/null 2>&1 &)")
    guard = await guard_of(sandbox)
    pids = descendants(guard)
    assert len(pids) >= 4, "init, server, tool spawner and what hides"
    await engine.remove(sandbox.id)
    assert not any(lives(pid) for pid in (guard, *pids))


async def test_file_calls_and_directories_of_programs_are_below_the_sandbox_s_own_root(
    sandbox: Sandbox, tmp_path: Path
) -> None:
    await sandbox.files.write("/tmp/a", b"temporary")
    assert text(await run(sandbox.shell, "cat $TMPDIR/a")) == "temporary"
    assert [entry.name for entry in (await sandbox.files.ls("/")).entries] == ["tmp", "workspace"]
    await run(sandbox.shell, f"ln -s {tmp_path} out")
    with pytest.raises(InvalidPath, match="symbolic link"):
        await sandbox.files.stat("/workspace/out/id")
    for outside in ("/etc/passwd", str(tmp_path / "id")):
        with pytest.raises(NotFound):
            await sandbox.files.stat(outside)


async def test_a_root_is_one_process_s_at_a_time(
    engine: MemoryEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await engine.prepare()
    monkeypatch.setattr("sandbox.engines.local.local_workspaces._LOCK_TIMEOUT_S", 0.01)
    other = MemoryEngine(root=tmp_path)
    with pytest.raises(SandboxUnavailable, match="another process"):
        await other.prepare()
    assert await other.id() == await engine.id()
    await engine.close()
    await other.prepare()
    await other.close()


async def test_a_daemon_that_cannot_start_fails_its_sandbox_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reported: list[Transition] = []
    engine = MemoryEngine(root=tmp_path, on_transition=reported.append)
    with monkeypatch.context() as patched:
        patched.setattr(local_process, "_PACKAGES", "/nonexistent")
        with pytest.raises(SandboxUnavailable, match="did not start"):
            await engine.create(SPEC)
        patched.setattr(sys, "executable", "/nonexistent/python")
        with pytest.raises(SandboxUnavailable, match="No such file"):
            await engine.create(SPEC)
    assert [one.state for one in reported] == ["creating", "failed", "creating", "failed"]
    assert await engine.owned() == {}
    assert await engine.remove_workspace(SPEC.tenant, SPEC.thread)
    assert [*tmp_path.glob("tmp/*"), *tmp_path.glob("workspaces/*/*")] == []
    assert await (await engine.create(SPEC)).ping()
    await engine.close()


async def test_it_needs_no_capability(tmp_path: Path) -> None:
    code = """
        import asyncio, ctypes, os, sys
        from pathlib import Path

        if len(sys.argv) < 3:  # a program executed as root has what the bounding set leaves: nothing
            for capability in range(64):
                ctypes.CDLL(None).prctl(24, capability, 0, 0, 0)
            os.execv(sys.executable, [sys.executable, "-c", os.environ["CODE"], sys.argv[1], "again"])

        from sandbox.engines.local.memory_engine import MemoryEngine
        from sandbox.sandbox import SandboxSpec

        async def main():
            assert int(Path("/proc/self/status").read_text().partition("CapEff:")[2].split()[0], 16) == 0
            engine = MemoryEngine(root=Path(sys.argv[1]))
            sandbox = await engine.create(SandboxSpec("tenant", "thread", "any-image"))
            limits = {"limit_chars": 99, "head_chars": 9, "tail_chars": 9}
            said = await sandbox.shell.execute("cat; echo here", timeout_s=60, call_id="c1", **limits)
            ended = await sandbox.shell.execute("setsid sleep 3600", timeout_s=0.2, call_id="c2", **limits)
            print(said.output[0].data, ended.outcome, (await sandbox.processes.list()).strays)
            await engine.close()

        asyncio.run(main())
    """
    code = textwrap.dedent(code)
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)],
        cwd=REPOSITORY,
        env={**os.environ, "CODE": code, "PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
        check=False,
        timeout=_OUTER_S,
    )
    assert (done.returncode, done.stdout) == (0, "b'here\\n' timed_out 0\n"), done.stderr


def test_the_channel_finds_a_socket_however_long_its_directory_s_path_is(tmp_path: Path) -> None:
    directory = tmp_path / ("d" * 120)
    directory.mkdir()

    async def connect() -> None:
        channel = Channel(UnixAddress(directory))
        await channel.connect()
        channel.close()

    with local_process._listening(directory):
        asyncio.run(connect())


async def test_one_that_was_stopped_is_not_taken_for_a_lost_one(engine: MemoryEngine) -> None:
    keeper = make_keeper(engine, stopped_timeout_s=3600)
    async with keeper.acquire(SPEC) as sandbox:
        stopped_id = sandbox.id
    await keeper.stop(SPEC.tenant, SPEC.thread)
    async with keeper.acquire_existing(SPEC) as found:
        assert found is None
    await keeper.settled()
    assert engine.stopped(SPEC) == stopped_id
    async with keeper.acquire(SPEC) as sandbox:
        assert sandbox.id == stopped_id
    await keeper.close()
