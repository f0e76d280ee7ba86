"""When a sandbox holds more sockets, terminals or open files than it may."""

from __future__ import annotations

from pathlib import Path

import pytest

from sandbox.daemon.limits.kernel import OPEN_FILES_LIMIT, TERMINALS_LIMIT, KernelUse

GIB = 1024**3


class PlayedKernel:
    """The files of a kernel that says what it is given."""

    def __init__(self, root: Path) -> None:
        self.proc, self.terminals = root / "proc", root / "pts"
        for place in (self.proc / "net", self.proc / "sys/fs", self.terminals):
            place.mkdir(parents=True)
        self.says(sockets=3, files=1000)

    def says(self, *, sockets: int, files: int) -> None:
        (self.proc / "net/sockstat").write_text(f"sockets: used {sockets}\nTCP: inuse 0 orphan 0 tw 0 alloc 1 mem 0\n")
        (self.proc / "sys/fs/file-nr").write_text(f"{files}\t0\t2466186\n")

    def has_process(self, pid: int, files: int) -> None:
        # As in /proc since Linux 6.2 the size of the directory is their number; a file stands for it here.
        place = self.proc / str(pid)
        place.mkdir()
        with (place / "fd").open("wb") as file:
            file.truncate(files)

    def use(self, memory_bytes: int = GIB) -> KernelUse:
        return KernelUse(memory_bytes, proc=str(self.proc), terminals=str(self.terminals))


@pytest.fixture
def kernel(tmp_path: Path) -> PlayedKernel:
    return PlayedKernel(tmp_path)


@pytest.mark.parametrize("memory_bytes, limit", [(0, 256), (64 * 1024**2, 256), (GIB, 1260), (1024 * GIB, 16_384)])
def test_sockets_may_take_a_quarter_of_the_memory_besides(kernel: PlayedKernel, memory_bytes: int, limit: int) -> None:
    use = kernel.use(memory_bytes)
    assert use.sockets_limit == limit
    kernel.says(sockets=limit, files=1000)
    assert not use.is_past()
    kernel.says(sockets=limit + 1, files=1000)
    assert use.is_past()


def test_terminals_have_a_limit(kernel: PlayedKernel) -> None:
    use = kernel.use()
    for number in range(TERMINALS_LIMIT):
        (kernel.terminals / str(number)).touch()
    assert not use.is_past()
    (kernel.terminals / "ptmx").touch()
    assert use.is_past()


def test_open_files_count_only_for_the_sandbox_that_has_them(kernel: PlayedKernel) -> None:
    use = kernel.use()
    kernel.has_process(7, OPEN_FILES_LIMIT // 2)
    kernel.has_process(8, OPEN_FILES_LIMIT // 2)
    assert not use.is_past()
    kernel.says(sockets=1, files=1001 + OPEN_FILES_LIMIT)
    assert not use.is_past()  # others opened them
    kernel.has_process(9, 1)
    assert use.is_past()
    use.begin()
    assert not use.is_past()  # they were there before


def test_a_kernel_that_does_not_say_is_taken_to_be_within_its_limits(tmp_path: Path) -> None:
    assert not KernelUse(GIB, proc=str(tmp_path / "no"), terminals=str(tmp_path / "no")).is_past()
