"""Programs that the server has init start under file rules: a real init, and real tool processes."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from sandbox.daemon.supervisor.control_wire import FILE_RULES_LIMIT
from sandbox.daemon.supervisor.file_rules import FileRules
from sandbox.daemon.supervisor.landlock import TRUNCATE_VERSION, landlock_version
from sandbox.daemon.supervisor.spawner import Spawner

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="only root starts programs as another user: run as root"),
    pytest.mark.skipif(landlock_version() < TRUNCATE_VERSION, reason="needs Landlock's third version: Linux 6.2"),
]
_TOOL = 10_001
_PR_SET_CHILD_SUBREAPER, _PR_SET_NO_NEW_PRIVS = 36, 38
_ROOT = Path(__file__).parents[5]


@pytest.fixture
def tree() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory)
        for name in ("src/app.py", "secrets/key", "docs/page.md"):
            path = root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(name)
        for path in (root, *root.rglob("*")):
            os.chown(path, _TOOL, _TOOL)
        yield root


class Starts:
    """The server's end, and the pid of its init."""

    def __init__(self, spawner: Spawner, init: int) -> None:
        self.spawner = spawner
        self.init = init

    async def run(self, line: str, cwd: Path, rules: FileRules | None) -> tuple[int, bytes]:
        """Return the wait status and the output of a shell line."""
        reading, writing = os.pipe()
        try:
            process = await self.spawner.start(
                [b"/bin/sh", b"-c", line.encode()],
                [b"PATH=/usr/bin:/bin"],
                os.fsencode(cwd),
                [writing, writing],
                file_rules=None if rules is None else rules.encode(),
            )
        finally:
            os.close(writing)
        try:
            status = await asyncio.wait_for(process.ended, 20)
            return status, os.read(reading, 65536)
        finally:
            self.spawner.forget(process)
            os.close(reading)

    def children(self) -> set[int]:
        """Return the tool spawners."""
        return set(map(int, Path(f"/proc/{self.init}/task/{self.init}/children").read_text().split()))


# A small process of its own: each start forks it twice, within a limit, and a process of tests is large.
_INIT = f"""
import ctypes, os, signal, socket, sys
from sandbox.daemon.supervisor.init import Init
from sandbox.daemon.supervisor.launch import ToolIdentity

ctypes.CDLL(None).prctl({_PR_SET_NO_NEW_PRIVS}, 1, 0, 0, 0)
ctypes.CDLL(None).prctl({_PR_SET_CHILD_SUBREAPER}, 1, 0, 0, 0)  # as pid 1, whose children orphans become
control = socket.socket(fileno=int(sys.argv[1]))
parent = os.fork()  # stands for the server, of whose end init hears
if parent == 0:
    signal.pause()
Init(control, parent, ToolIdentity({_TOOL}, {_TOOL})).run()
"""


@pytest.fixture
async def starts() -> AsyncIterator[Starts]:
    server, control = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with control:
        number = control.fileno()
        init = subprocess.Popen([sys.executable, "-c", _INIT, str(number)], cwd=_ROOT, pass_fds=[number])
    try:
        yield Starts(Spawner(server), init.pid)
    finally:
        asyncio.get_running_loop().remove_reader(server.fileno())
        server.close()  # init kills what stands for the server, and ends
        init.wait()


def paths(*found: Path) -> tuple[bytes, ...]:
    return tuple(map(os.fsencode, found))


async def test_a_program_is_restricted_by_its_rules_and_the_next_one_is_free(starts: Starts, tree: Path) -> None:
    rules = FileRules(paths(tree), paths(tree / "src"), unreadable=paths(tree / "secrets"))
    status, _ = await starts.run("cat secrets/key", tree, rules)
    assert status != 0
    assert await starts.run("echo x > src/new && cat src/new docs/page.md", tree, rules) == (0, b"x\ndocs/page.md")
    assert await starts.run("cat secrets/key", tree, None) == (0, b"secrets/key")
    status, output = await starts.run("id -u; cat secrets/key", tree, rules)
    assert (status != 0, output.startswith(b"10001\n")) == (True, True)


async def test_what_is_made_beside_a_forbidden_directory_is_there_for_the_next_program(
    starts: Starts, tree: Path
) -> None:
    rules = FileRules(paths(tree), unreadable=paths(tree / "secrets"))
    assert (await starts.run("cat docs/page.md", tree, rules))[0] == 0
    before = starts.children()
    assert (await starts.run("cat docs/page.md", tree, rules))[0] == 0
    assert starts.children() == before
    (tree / "new").write_text("new")
    assert await starts.run("cat new", tree, rules) == (0, b"new")
    assert (await starts.run("cat secrets/key", tree, rules))[0] != 0
    assert len(starts.children() - before) == 1


async def test_files_that_change_all_the_time_delay_nothing_for_ever(starts: Starts, tree: Path) -> None:
    rules = FileRules(paths(tree), unreadable=paths(tree / "secrets"))
    over = asyncio.Event()

    async def change() -> None:
        while not over.is_set():
            (tree / "flicker").touch()
            await asyncio.sleep(0)
            (tree / "flicker").unlink()
            await asyncio.sleep(0)

    changing = asyncio.create_task(change())
    try:
        ends = await asyncio.gather(*(starts.run("cat docs/page.md", tree, rules) for _ in range(5)))
    finally:
        over.set()
        await changing
    assert [status for status, _ in ends] == [0] * 5


async def test_what_runs_goes_on_under_its_rules_when_others_take_their_place(starts: Starts, tree: Path) -> None:
    rules = FileRules(paths(tree), unreadable=paths(tree / "secrets"))
    waiting = asyncio.create_task(
        starts.run("while ! [ -e src/go ]; do sleep 0.02; done; cat secrets/key; echo over", tree, rules)
    )
    for number in range(FILE_RULES_LIMIT + 2):
        other = FileRules(paths(tree / "src", tree / f"d{number}"))
        assert (await starts.run("cat src/app.py", tree, other))[0] == 0
        assert (await starts.run("cat docs/page.md", tree, other))[0] != 0
    assert not waiting.done()
    (tree / "src" / "go").touch()
    status, output = await waiting
    assert (status, output.endswith(b"over\n"), b"secrets/key" in output.split()) == (0, True, False)
    most = FILE_RULES_LIMIT + 2  # the one without rules, and what stands for the server
    async with asyncio.timeout(20):
        while len(starts.children()) > most:  # what has ended is there until init reaps it
            await asyncio.sleep(0.01)


async def test_many_at_once_under_different_rules_are_each_restricted_by_their_own(starts: Starts, tree: Path) -> None:
    for name in "abcdef":
        (tree / name).mkdir()
        (tree / name / "file").write_text(name)
    rules = {name: FileRules(paths(tree / name)) for name in "abcdef"}
    lines = {name: "; ".join(f"cat {other}/file 2>/dev/null" for other in "abcdef") for name in "abcdef"}
    names = "abcdef" * 5
    ends = await asyncio.gather(*(starts.run(lines[name], tree, rules[name]) for name in names))
    assert [output.decode() for _, output in ends] == list(names)


async def test_a_rules_spawner_that_is_killed_is_made_again(starts: Starts, tree: Path) -> None:
    rules = FileRules(paths(tree), unreadable=paths(tree / "secrets"))
    assert (await starts.run("true", tree, None))[0] == 0
    before = starts.children()
    assert (await starts.run("true", tree, rules))[0] == 0
    (spawner,) = starts.children() - before
    os.kill(spawner, signal.SIGKILL)
    while spawner in starts.children():  # an order that reaches it before is lost with it
        await asyncio.sleep(0.01)
    assert (await starts.run("cat secrets/key", tree, rules))[0] != 0
    assert (await starts.run("cat docs/page.md", tree, rules))[0] == 0


async def test_rules_that_made_no_domain_are_tried_again_once_there_are_fewer_files(starts: Starts, tree: Path) -> None:
    rules = FileRules(paths(tree), unreadable=paths(tree / "secrets"))
    many = [tree / f"file{number}" for number in range(4097)]
    for path in many:
        path.touch()
    for _ in range(2):
        with pytest.raises(OSError, match=os.strerror(errno.EOVERFLOW)):
            await starts.run("cat docs/page.md", tree, rules)
    for path in many:
        path.unlink()
    assert await starts.run("cat docs/page.md", tree, rules) == (0, b"docs/page.md")
    assert (await starts.run("cat secrets/key", tree, rules))[0] != 0


async def test_a_directory_to_write_is_made_before_the_first_program_starts(starts: Starts, tree: Path) -> None:
    rules = FileRules(paths(tree), paths(tree / "build" / "out"))
    assert (await starts.run("echo x > build/out/x && cat build/out/x", tree, rules)) == (0, b"x\n")
    assert (await starts.run("mkdir build/other", tree, rules))[0] != 0
