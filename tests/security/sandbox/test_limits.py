"""Each limit of a sandbox, taken at its word by tool code that goes for more. That of disk is test_disk_limit.py."""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import AsyncIterator
from pathlib import Path

import docker
import pytest
import pytest_asyncio

from sandbox.client.cgroup_usage import read_usage
from sandbox.engines.docker.container_config import container_name
from sandbox.engines.docker.docker_engine import DockerEngine
from sandbox.sandbox import Sandbox, SandboxLimits
from tests.integration.sandbox.live_engine import run, spec, text

pytestmark = pytest.mark.asyncio(loop_scope="session")

MIB = 1024 * 1024
LIMITS = SandboxLimits(
    memory_bytes=128 * MIB, cpus=0.5, pids=60, workspace_bytes=8 * MIB, tmp_bytes=4 * MIB, open_files=200
)


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def sandbox(engine: DockerEngine) -> AsyncIterator[Sandbox]:
    made = await engine.create(dataclasses.replace(spec("limits"), limits=LIMITS))
    yield made
    await engine.remove(made.id)


async def said(sandbox: Sandbox, program: str) -> str:
    """Run a Python program to its end and return what it wrote."""
    beginning = "import errno, os, resource, signal, sys, time\n"
    done = await run(sandbox.shell, f"exec python3 -c {shlex.quote(beginning + program)}", timeout_s=60)
    assert (done.outcome, done.exit_code) == ("exited", 0), (done.outcome, done.message, text(done))
    return text(done).strip()


async def test_memory_and_swap_end_together(sandbox: Sandbox) -> None:
    program = "kept = [bytes(range(256)) * 4096 for _ in range(100_000)]"
    assert (await run(sandbox.shell, f"exec python3 -c '{program}'", timeout_s=60)).outcome == "out_of_memory"
    used = await read_usage(sandbox)
    assert used is not None
    assert 0 < (used.memory_peak_bytes or 0) <= LIMITS.memory_bytes
    if sandbox.posture.memory_swap_limit_bytes:  # where the kernel limits swap at all
        assert sandbox.posture.memory_swap_limit_bytes == LIMITS.memory_bytes


async def test_ten_that_spin_get_as_much_processor_as_one(sandbox: Sandbox) -> None:
    before = await read_usage(sandbox)
    wall_s = float(
        await said(
            sandbox,
            """
began_s = time.monotonic()
for _ in range(10):
    if not os.fork():
        while time.monotonic() < began_s + 2:
            pass
        os._exit(0)
for _ in range(10):
    os.wait()
print(time.monotonic() - began_s)
""",
        )
    )
    after = await read_usage(sandbox)
    assert before is not None
    assert after is not None
    used_s = (after.cpu_s or 0) - (before.cpu_s or 0)
    assert 0 < used_s < LIMITS.cpus * wall_s * 1.5  # a quota is counted in periods, and the first may be whole


async def test_processes_end_at_their_limit(sandbox: Sandbox) -> None:
    made, reason = (
        await said(
            sandbox,
            """
children = []
try:
    while True:
        children.append(os.fork() or signal.pause())
except OSError as error:
    print(len(children), errno.errorcode[error.errno])
for child in children:
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
""",
        )
    ).split()
    assert (20 < int(made) < LIMITS.pids, reason) == (True, "EAGAIN")


async def test_descriptors_end_at_their_limit_and_no_limit_can_be_raised(sandbox: Sandbox) -> None:
    opened, reason = (
        await said(
            sandbox,
            """
kept = []
try:
    while True:
        kept.append(os.open('/dev/null', os.O_RDONLY))
except OSError as error:
    number = error.errno
    os.close(kept.pop())
    os.close(kept.pop())
    print(len(kept) + 2, errno.errorcode[number])
""",
        )
    ).split()
    assert (int(opened) < LIMITS.open_files, reason) == (True, "EMFILE")
    raised = await said(
        sandbox,
        """
for name in ('NOFILE', 'NPROC', 'FSIZE', 'CORE', 'MSGQUEUE'):
    which = getattr(resource, f'RLIMIT_{name}', 12)
    soft, hard = resource.getrlimit(which)
    for wanted in ((hard, hard + 1), (resource.RLIM_INFINITY, resource.RLIM_INFINITY)):
        try:
            resource.setrlimit(which, wanted)
            print(name, soft, hard)
        except (ValueError, OSError):
            pass
""",
    )
    assert raised == ""


async def test_one_file_ends_at_the_size_of_the_workspace(sandbox: Sandbox) -> None:
    size, reason = (
        await said(
            sandbox,
            """
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
fd = os.open('/workspace/file', os.O_WRONLY | os.O_CREAT)
try:
    os.lseek(fd, (8 << 20) - 10, os.SEEK_SET)
    while True:
        os.write(fd, bytes(100))
except OSError as error:
    print(os.fstat(fd).st_size, errno.errorcode[error.errno])
for act in (lambda: os.ftruncate(fd, 1 << 40), lambda: os.pwrite(fd, b'x', 1 << 40)):
    try:
        act()
        print('grew')
    except OSError:
        pass
os.unlink('/workspace/file')
""",
        )
    ).split()
    assert (int(size), reason) == (LIMITS.workspace_bytes, "EFBIG")


@pytest.mark.parametrize("place, most_bytes", [("/tmp", LIMITS.tmp_bytes), ("/dev/shm", 8 * MIB)])
async def test_what_is_in_memory_ends_at_its_size(sandbox: Sandbox, place: str, most_bytes: int) -> None:
    taken, reason = (
        await said(
            sandbox,
            f"""
taken = 0
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
for number in range(1000):
    fd = os.open(f'{place}/fill{{number}}', os.O_WRONLY | os.O_CREAT)
    try:
        for _ in range(16):
            taken += os.write(fd, bytes(65536))
    except OSError as error:
        reason = error.errno
        break
    finally:
        os.close(fd)
for name in os.listdir('{place}'):
    os.unlink(f'{place}/{{name}}')
print(taken, errno.errorcode[reason])
""",
        )
    ).split()
    assert (int(taken) <= most_bytes, reason) == (True, "ENOSPC")


async def test_nothing_but_the_workspace_is_on_the_host_s_disk_and_writable(sandbox: Sandbox) -> None:
    in_memory = {"tmpfs", "mqueue", "devpts", "proc"}
    on_disk = [mount.path for mount in sandbox.posture.mounts if mount.tool_writable and mount.type not in in_memory]
    assert on_disk == ["/workspace"]
    places = "-not -path /tmp -not -path /workspace -not -type l"
    found = await run(sandbox.shell, f"find / /etc /run /var -xdev -writable {places} 2>/dev/null")
    assert text(found) == ""


async def test_no_output_ends_in_a_file_of_the_engine_or_of_the_gateway(engine: DockerEngine, sandbox: Sandbox) -> None:
    loud = "yes | head -c 20M; yes | head -c 20M > /proc/1/fd/1; yes | head -c 20M > /proc/1/fd/2; yes | head -c 5M >&2"
    assert (await run(sandbox.shell, f"({loud}) 2>&1; true")).outcome == "exited"
    container = docker.from_env().containers.get(container_name(engine.instance, sandbox.id))
    assert container.attrs["HostConfig"]["LogConfig"]["Type"] == "none"
    assert container.attrs["LogPath"] == ""
    directory = Path(engine.channel_root / sandbox.id)
    assert [path.name for path in directory.iterdir()] == ["daemon.sock"]
