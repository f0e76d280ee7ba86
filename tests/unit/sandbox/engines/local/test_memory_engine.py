"""What is the in-memory engine's own; what it does as every engine does is in tests/conformance/test_engine.py."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from sandbox.daemon.supervisor.call_tree import is_dead, read_status
from sandbox.engines.local.local_workspaces import fill_directory, read_directory
from sandbox.engines.local.memory_engine import MemoryEngine
from sandbox.engines.local.memory_sandboxes import MemorySandbox
from sandbox.engines.workspace_archive import ArchiveBroken, Kind, WorkspaceEntry
from sandbox.errors import DaemonLost, NotFound, PermissionDenied, SandboxUnavailable
from sandbox.protocols import ExecResult, ProgramSpec, Shell
from sandbox.sandbox import SandboxSpec
from sandbox.transition import Transition

SPEC = SandboxSpec("tenant", "thread", "any-image")
_OUTER_S = 60.0


async def run(shell: Shell, command: str) -> ExecResult:
    return await shell.execute(
        command, timeout_s=60, call_id="c1", limit_chars=80_000, head_chars=2_000, tail_chars=2_000
    )


def text(result: ExecResult) -> str:
    return b"".join(piece.data for piece in result.output).decode()


async def test_a_command_gets_nothing_of_the_gateway_s_environment_but_the_way_to_programs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    engine = MemoryEngine(root=tmp_path)
    sandbox = await engine.create(SPEC)
    names = {line.partition("=")[0] for line in text(await run(sandbox.shell, "env")).splitlines()}
    assert names - {"_", "SHLVL", "OLDPWD"} == {"AIRLOCK_CALL", "HOME", "LANG", "PATH", "PWD", "TMPDIR"}
    await engine.close()


async def test_one_that_is_lost_has_failed_until_it_is_replaced_and_then_it_is_removed(tmp_path: Path) -> None:
    reported: list[Transition] = []
    engine = MemoryEngine(root=tmp_path, on_transition=reported.append)
    lost = await engine.create(SPEC)
    assert isinstance(lost, MemorySandbox)
    lost.channel.mark_lost(DaemonLost("it broke the protocol"))
    (shown,) = await engine.listed(SPEC.tenant)
    assert (shown.state, shown.reason) == ("failed", "it was lost: it broke the protocol")
    assert await engine.owned() == {lost.id: False}
    again = await engine.create(SPEC)
    assert await engine.owned() == {again.id: True}
    assert [one.state for one in reported if one.sandbox == lost.id] == ["creating", "running", "removed"]
    await engine.close()


async def test_a_command_without_an_environment_or_a_session_of_its_own_is_found_as_well(tmp_path: Path) -> None:
    engine = MemoryEngine(root=tmp_path)
    sandbox = await engine.create(SPEC)
    running = asyncio.ensure_future(
        run(
            sandbox.shell,
            "for n in 1 2 3 4 5 6 7 8; do env -i sleep 3600 & echo $! >> bare; done; "
            "setsid sh -c 'echo $$ > own; exec sleep 3600' & sleep 3600",
        )
    )
    async with asyncio.timeout(_OUTER_S):
        while (await run(sandbox.shell, "test -s own && test $(wc -l < bare) = 8")).exit_code != 0:
            await asyncio.sleep(0)
    pids = [int(line) for line in text(await run(sandbox.shell, "cat bare own")).split()]
    assert all(is_there(pid) for pid in pids)
    await engine.remove(sandbox.id)
    assert (await running).outcome == "daemon_lost"
    async with asyncio.timeout(_OUTER_S):
        while any(is_there(pid) for pid in pids):
            await asyncio.sleep(0.01)
    await engine.close()


def is_there(pid: int) -> bool:
    """Return whether a process runs; one that is dead waits for its parent alone."""
    status = read_status(pid)
    return status is not None and not is_dead(status)


async def test_a_process_that_is_killed_leaves_no_programs_and_files_that_the_next_one_finds(
    tmp_path: Path,
) -> None:
    script = """
        import asyncio, sys
        from pathlib import Path
        from sandbox.sandbox import SandboxSpec
        from sandbox.engines.local.memory_engine import MemoryEngine

        async def main():
            engine = MemoryEngine(root=Path(sys.argv[1]))
            sandbox = await engine.create(SandboxSpec("tenant", "thread", "any-image"))
            await sandbox.files.write("/workspace/a", b"1")
            print(sandbox.id, flush=True)
            command = "(env -i setsid sh -c 'echo $$ > pid; echo $PPID > daemon; exec sleep 3600' &) ; sleep 3600"
            await sandbox.shell.execute(
                command, timeout_s=600, call_id="c", limit_chars=9, head_chars=2, tail_chars=2
            )

        asyncio.run(main())
    """
    killed = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(script), str(tmp_path)],
        stdout=subprocess.PIPE,
        cwd=Path(__file__).parents[5],
    )
    assert killed.stdout is not None
    sandbox_id = killed.stdout.readline().decode().strip()
    async with asyncio.timeout(_OUTER_S):
        while not any(path.stat().st_size for path in tmp_path.glob("workspaces/*/*/workspace/daemon")):
            await asyncio.sleep(0.01)
    pids = [int(path.read_text()) for path in tmp_path.glob("workspaces/*/*/workspace/*") if path.name != "a"]
    assert len(pids) == 2
    assert all(is_there(pid) for pid in pids)
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    killed.stdout.close()

    engine_id = (tmp_path / "id").read_text()
    engine = MemoryEngine(root=tmp_path)
    assert await engine.reconcile() == []
    assert not any(is_there(pid) for pid in pids)
    assert await engine.id() == engine_id
    assert [*tmp_path.glob("tmp/*"), *tmp_path.glob("workspaces/*/*/tmp")] == []
    sandbox = await engine.create(SPEC)
    assert sandbox.id != sandbox_id
    assert (await sandbox.files.stat("/workspace/a")).size_bytes == 1
    await engine.close()


async def test_without_a_root_of_its_own_nothing_is_left_when_it_is_closed() -> None:
    engine = MemoryEngine()
    sandbox = await engine.create(SPEC)
    place = text(await run(sandbox.shell, "pwd")).strip()
    assert Path(place).is_dir()
    await engine.close()
    assert not Path(place).exists()
    assert not Path(place).parents[3].exists()
    with pytest.raises(SandboxUnavailable, match="closed"):
        await engine.create(SPEC)


async def test_a_root_that_cannot_be_one_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(SandboxUnavailable, match=f"{tmp_path}/file"):
        await MemoryEngine(root=tmp_path / "file").prepare()


async def test_a_sandbox_past_its_lifetime_is_replaced_once_it_is_unused(tmp_path: Path) -> None:
    now_s = 1000.0
    engine = MemoryEngine(root=tmp_path, lifetime_s=60, clock=lambda: now_s)
    first = await engine.create(SPEC)
    assert first.borrow()
    now_s = 1060.0
    assert first.outdated
    assert (await engine.create(SPEC)).id == first.id
    first.give_back()
    second = await engine.create(SPEC)
    assert second.id != first.id
    now_s = 1119.0
    assert await engine.stop_idle(second.id)
    now_s = 1120.0
    third = await engine.create(SPEC)
    assert (third.id != second.id, third.take_ended_processes()) == (True, 0)
    await engine.close()


async def test_calls_in_a_sandbox_past_its_lifetime_are_ended_as_lost(tmp_path: Path) -> None:
    now_s = 1000.0
    reported: list[Transition] = []
    engine = MemoryEngine(root=tmp_path, lifetime_s=60, clock=lambda: now_s, on_transition=reported.append)
    sandbox = await engine.create(SPEC)
    assert sandbox.borrow()
    calling = asyncio.create_task(run(sandbox.shell, "echo begun > begun; exec sleep 1000"))
    async with asyncio.timeout(10):
        while not list(tmp_path.rglob("begun")):
            await asyncio.sleep(0.01)
    now_s = 1059.0
    assert (sandbox.overdue_s, await engine.end_calls("tenant", "thread", overdue=True)) == (None, False)
    now_s = 1070.0
    assert (sandbox.overdue_s, sandbox.busy) == (10.0, True)
    assert await engine.end_calls(SPEC.tenant, SPEC.thread, overdue=True)
    assert (await calling).outcome == "daemon_lost"
    assert (reported[-1].state, reported[-1].reason) == ("removed", "its calls ran too long past its lifetime")
    await engine.close()


async def test_files_outside_of_the_workspace_are_out_of_reach_and_real_paths_are_not_shown(
    tmp_path: Path,
) -> None:
    engine = MemoryEngine(root=tmp_path)
    sandbox = await engine.create(SPEC)
    for outside in ("/etc/passwd", str(tmp_path / "id")):
        with pytest.raises(NotFound):
            await sandbox.files.stat(outside)
    for refused in (sandbox.files.ls("/workspace/none"), sandbox.processes.wait("none", wait_s=0)):
        with pytest.raises(NotFound) as caught:
            await refused
        assert str(tmp_path) not in str(caught.value)
    result = await sandbox.shell.run_program(
        ProgramSpec([b"/bin/true"], cwd="/workspace/none", timeout_s=30, output_limit_bytes=1),
        stdin=None,
        on_output=ignored,
    )
    assert (result.outcome, "/workspace/none" in result.message) == ("failed_to_start", True)
    assert str(tmp_path) not in result.message
    await engine.remove(sandbox.id)
    with pytest.raises(DaemonLost):
        await sandbox.files.write("/workspace/a", b"1")
    await engine.close()


async def ignored(stream: str, data: bytes) -> None:
    """Take no output."""


async def test_a_file_of_two_names_is_refused_where_the_spec_says_so(tmp_path: Path) -> None:
    engine = MemoryEngine(root=tmp_path)
    strict = SandboxSpec("tenant", "thread", "any-image", refuse_hard_links=True)
    sandbox = await engine.create(strict)
    await run(sandbox.shell, "echo one > a; ln a b")
    for refused in (sandbox.files.read_lines("/workspace/a"), sandbox.files.edit("/workspace/b", b"one", b"two")):
        with pytest.raises(PermissionDenied, match="hard link"):
            await refused
    assert (await sandbox.files.grep("/workspace", "one")).hard_linked_files == 2
    lenient = await engine.create(SPEC)
    assert (await lenient.files.read_lines("/workspace/a")).data == b"one\n"
    await engine.close()


def entry(path: str, kind: Kind = "file", target: str = "") -> tuple[WorkspaceEntry, Iterator[bytes]]:
    return WorkspaceEntry(path, kind, size_bytes=1 if kind == "file" else 0, target=target), iter((b"x",))


@pytest.mark.parametrize(
    "entries",
    [
        [entry("../out")],
        [entry("a/../../out")],
        [entry("/tmp/out")],
        [entry("way", "symlink", ".."), entry("way/out")],
        [entry("way", "symlink", ".."), entry("way/out", "directory")],
        [entry("way", "symlink", ".."), entry("way/out", "symlink", "x")],
        [entry("near", "hardlink", "../outside")],
        [entry("way", "symlink", ".."), entry("near", "hardlink", "way/outside")],
        [entry("pipe", "special")],
    ],
)
def test_contents_that_lead_out_of_a_directory_are_refused(
    tmp_path: Path, entries: list[tuple[WorkspaceEntry, Iterator[bytes]]]
) -> None:
    inside = tmp_path / "inside"
    inside.mkdir()
    (tmp_path / "outside").write_bytes(b"")
    with pytest.raises(ArchiveBroken):
        fill_directory(inside, iter(entries))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["inside", "outside"]
    assert (tmp_path / "outside").stat().st_nlink == 1


def test_a_directory_is_read_as_it_is_without_following_anything(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "a").write_bytes(b"one")
    (tmp_path / "way").symlink_to("/etc")
    found = [(one.path, one.kind, b"".join(content)) for one, content in read_directory(tmp_path)]
    assert found == [
        ("", "directory", b""),
        ("d", "directory", b""),
        ("d/a", "file", b"one"),
        ("way", "symlink", b""),
    ]
