"""What stays in memory when processes are dead leaves the daemon its half."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from sandbox.engines.docker.container_config import lasting_ipc, lasting_tmpfs
from sandbox.sandbox import SandboxLimits

MIB = 1024 * 1024


def options(text: str) -> dict[str, int]:
    pairs = (option.partition("=") for option in text.split(",") if "=" in option)
    return {name: int(value) for name, _, value in pairs}


def most_bytes(limits: SandboxLimits) -> int:
    """Return what the bounds allow, priced by what this was measured to cost on Linux 6.18."""
    file_bytes, message_bytes, semaphore_bytes = 1536, 64, 64
    ipc = lasting_ipc(limits)
    mounts = [options(text) for text in lasting_tmpfs(limits).values()]
    queue_bytes = int(ipc["kernel.msgmni"]) * int(ipc["kernel.msgmnb"])
    return (
        sum(mount["size"] + mount["nr_inodes"] * file_bytes for mount in mounts)
        + int(ipc["kernel.shmall"]) * 4096
        + queue_bytes * message_bytes
        + int(ipc["kernel.sem"].split()[1]) * semaphore_bytes
    )


@given(st.integers(32 * MIB, 64 * 1024 * MIB), st.integers(1, 2**50))
def test_all_of_it_together_is_at_most_half_of_the_memory(memory_bytes: int, tmp_bytes: int) -> None:
    assert most_bytes(SandboxLimits(memory_bytes=memory_bytes, tmp_bytes=tmp_bytes)) <= memory_bytes // 2


def test_the_default_limits_get_the_tmp_that_they_ask_for() -> None:
    limits = SandboxLimits()
    assert options(lasting_tmpfs(limits)["/tmp"])["size"] == limits.tmp_bytes


def test_a_tmp_that_does_not_fit_is_smaller_than_asked_and_never_nothing() -> None:
    sizes = [
        options(lasting_tmpfs(SandboxLimits(memory_bytes=mib * MIB, tmp_bytes=2**40))["/tmp"])["size"]
        for mib in (6, 64, 1024)
    ]
    assert sizes[0] == MIB
    assert MIB < sizes[1] < 32 * MIB
    assert sizes[1] < sizes[2] < 512 * MIB
