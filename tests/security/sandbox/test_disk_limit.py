"""Everything that tool code can do to take more of the host's disk than its workspace may have, in a live sandbox.

The engine's disk here has no quotas, as most have none. Where it has, the kernel refuses what the daemon ends here.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
import shlex
import shutil
import subprocess
from collections.abc import AsyncIterator, Awaitable
from pathlib import Path

import pytest
import pytest_asyncio

from sandbox.engines.docker.container_config import volume_of
from sandbox.engines.docker.docker_engine import DockerEngine
from sandbox.errors import NoSpace, PermissionDenied
from sandbox.protocols import ExecResult, ProcessSpec
from sandbox.sandbox import Sandbox, SandboxLimits, owner_by_name
from tests.docker_state import mountpoint_of
from tests.integration.sandbox.live_engine import run, spec, text
from tests.security.sandbox.hostile_guest import TOOLS, Guest

pytestmark = pytest.mark.asyncio(loop_scope="session")

MIB = 1024 * 1024
LIMITS = SandboxLimits(memory_bytes=256 * MIB, workspace_bytes=64 * MIB, workspace_files=2000, pids=200)
# What an attack stops at if it is not stopped.
MOST_BYTES = 1024 * MIB
SPEC = dataclasses.replace(spec("disk-limit"), limits=LIMITS)

WRITING = f"""
MIB = 1 << 20
os.chdir('/workspace')
def fill(fd, size=60 * MIB):
    done = 0
    while done < size:
        done += os.write(fd, bytes(MIB))
def numbers():
    return range({MOST_BYTES} // (60 * MIB))
def hold():
    time.sleep(60)
    sys.exit('nobody came')
"""

# A program for x86-64 that unmaps its own text, removes the file that its first argument names, and waits.
NOWHERE = (
    "7f454c4602010100000000000000000002003e00010000007800400000000000400000000000000000020000000000000000000040003800"
    "01004000050004000100000005000000000000000000000000004000000000000000400000000000e900000000000000e900000000000000"
    "00100000000000004c8b642410b80900000031ffbe00100000ba0700000041ba2200000049c7c0ffffffff4531c90f054989c5488d351b00"
    "00004889c7b924000000f3a44c8d35bdffffff4981e600f0ffff41ffe5b80b000000bf00004000be000010000f05b8570000004c89e70f05"
    "b8220000000f05ebf7"
)

ATTACKS = {
    "many files": """
for number in numbers():
    fill(os.open(f'{number}', os.O_WRONLY | os.O_CREAT))
hold()
""",
    "files that lose their names": """
for number in numbers():
    fd = os.open(f'{number}', os.O_WRONLY | os.O_CREAT)
    os.unlink(f'{number}')
    fill(fd)
hold()
""",
    "files that never had a name": """
for number in numbers():
    fill(os.open('.', os.O_WRONLY | os.O_TMPFILE))
hold()
""",
    "files that are only mapped": """
import mmap
kept = []
for number in numbers():
    fd = os.open('.', os.O_RDWR | os.O_TMPFILE)
    fill(fd)
    kept.append(mmap.mmap(fd, 4096))
    os.close(fd)
hold()
""",
    "a process that lets nobody look into it": """
PR_SET_DUMPABLE = 4
libc.prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)
for number in numbers():
    fill(os.open('.', os.O_WRONLY | os.O_TMPFILE))
hold()
""",
    "a program that its own user may not read": """
import shutil
shutil.copy(os.path.realpath('/proc/self/exe'), '/tmp/unreadable')
os.chmod('/tmp/unreadable', 0o111)
program = '''
import os
kept = []
for number in range(50):
    fd = os.open('/workspace', os.O_WRONLY | os.O_TMPFILE)
    for _ in range(60):
        os.write(fd, bytes(1 << 20))
    kept.append(fd)
import time
time.sleep(60)
'''
os.execve('/tmp/unreadable', ['python3', '-S', '-c', program], {'PYTHONHOME': sys.base_prefix})
""",
    "files under way between processes": """
import array, socket
one, two = socket.socketpair()
for number in numbers():
    fd = os.open('.', os.O_WRONLY | os.O_TMPFILE)
    fill(fd)
    one.sendmsg([b'x'], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array('i', [fd]))])
    os.close(fd)
hold()
""",
    "descriptors of a thread's own": """
CLONE_VM, CLONE_FS, CLONE_SIGHAND, CLONE_VFORK, CLONE_THREAD = 0x100, 0x200, 0x800, 0x4000, 0x10000
stack = ctypes.create_string_buffer(1 << 22)
@ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p)
def work(_):
    for number in numbers():
        fill(os.open('.', os.O_WRONLY | os.O_TMPFILE))
    hold()
# A thread that has no descriptors in common with the first one, which waits meanwhile.
flags = CLONE_VM | CLONE_FS | CLONE_SIGHAND | CLONE_VFORK | CLONE_THREAD
ctypes.PyDLL(None).clone(work, ctypes.c_void_p(ctypes.addressof(stack) + (1 << 22) - 64), flags, None)
""",
    "directories that nobody may read": """
for number in numbers():
    os.mkdir(f'{number}')
    fill(os.open(f'{number}/file', os.O_WRONLY | os.O_CREAT))
    os.chmod(f'{number}', 0)
hold()
""",
    "a directory that changes its rights all the time": """
os.mkdir('hidden')
def flicker():
    while True:
        os.chmod('hidden', 0)
        os.chmod('hidden', 0o700)
fork(flicker)
number = 0
while number < len(numbers()):
    try:
        fd = os.open(f'hidden/{number}', os.O_WRONLY | os.O_CREAT)
    except PermissionError:
        continue
    fill(fd)
    number += 1
hold()
""",
    "a tree too deep to be held open": """
for number in range(600):
    os.mkdir('d')
    os.chdir('d')
for number in numbers():
    fill(os.open(f'{number}', os.O_WRONLY | os.O_CREAT))
hold()
""",
    "directories that are swapped while they are counted": """
for name in ('a', 'b'):
    os.mkdir(name)
def swap():
    while True:
        for one, other in (('a', 'c'), ('b', 'a'), ('c', 'b')):
            os.rename(one, other)
fork(swap)
for number in numbers():
    fill(os.open(f'{number}', os.O_WRONLY | os.O_CREAT))
hold()
""",
    "processes that have each other go on while they are counted": """
def spin():
    signal.signal(signal.SIGCONT, signal.SIG_IGN)
    while True:
        os.kill(-1, signal.SIGCONT)
for _ in range(20):
    fork(spin)
for number in numbers():
    fill(os.open(f'{number}', os.O_WRONLY | os.O_CREAT))
hold()
""",
    "programs whose file is gone": f"""
import subprocess
for number in numbers():
    fd = os.open(f'{{number}}', os.O_WRONLY | os.O_CREAT, 0o755)
    os.write(fd, bytes.fromhex('{NOWHERE}'))
    fill(fd)
    os.close(fd)
    os.posix_spawn(f'{{number}}', ['x', f'{{number}}'], {{}})
    while os.path.exists(f'{{number}}'):
        time.sleep(0.01)
hold()
""",
    "files that are mapped by a process whose first thread has ended": """
import mmap, threading
def work():
    kept = []
    for number in numbers():
        fd = os.open('.', os.O_RDWR | os.O_TMPFILE)
        fill(fd)
        kept.append(mmap.mmap(fd, 4096))
        os.close(fd)
    hold()
threading.Thread(target=work).start()
libc.syscall(60 if os.uname().machine == 'x86_64' else 93, 0)
""",
    "names without end": """
for number in range(1_000_000):
    os.symlink('x', f'{number:0250}')
hold()
""",
}

# Directories keep the blocks of the names that were in them. A few MiB of these take seconds, so the limit is lower.
DIRECTORY_LIMITS = dataclasses.replace(LIMITS, workspace_bytes=8 * MIB)
DIRECTORY_ATTACKS = {
    "open": """
def emptied():
    os.mkdir('directory')
    fd = os.open('directory', os.O_PATH)
    os.chdir(fd)
    for number in range(1500):
        os.link('../seed', f'{number:0250}')
    for number in range(1500):
        os.unlink(f'{number:0250}')
    os.chdir('..')
    os.rmdir('directory')
    return fd
open('seed', 'w').close()
kept = [emptied() for _ in range(40)]
hold()
""",
    "worked in": """
def work_in():
    os.mkdir('directory')
    os.chdir('directory')
    for number in range(1500):
        os.link('../seed', f'{number:0250}')
    for number in range(1500):
        os.unlink(f'{number:0250}')
    os.rmdir('../directory')
    os.kill(os.getppid(), signal.SIGUSR1)
    hold()
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
open('seed', 'w').close()
for _ in range(40):
    fork(work_in)
    signal.sigwait([signal.SIGUSR1])
hold()
""",
}


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def made(engine: DockerEngine) -> AsyncIterator[Guest]:
    sandbox = await engine.create(SPEC)
    yield Guest(sandbox, engine.instance)
    await engine.remove(sandbox.id)


@pytest_asyncio.fixture(loop_scope="session")
async def sandbox(made: Guest, engine: DockerEngine) -> AsyncIterator[Sandbox]:
    yield made.sandbox
    # File calls enter no directory that an attack has closed.
    subprocess.run(["chmod", "-R", "u+rwx", volume(engine)], check=False, capture_output=True)
    await emptied(made.sandbox)
    await made.works()


async def emptied(sandbox: Sandbox) -> None:
    """Remove everything, by file calls first: on a busy machine an attack may get so far that nothing is started."""
    for entry in (await sandbox.files.ls("/workspace", limit=100)).entries:
        with contextlib.suppress(PermissionDenied):
            await sandbox.files.remove(f"/workspace/{entry.name}", recursive=True)
    done = await run(sandbox.shell, "chmod -R u+rwx . ; rm -rf /workspace/* /tmp/*; ls -A", timeout_s=60)
    assert reported(done) == ("exited", " ")


def volume(engine: DockerEngine) -> Path:
    """Return where the host has the files of the sandbox's workspace."""
    name = volume_of(engine.instance, owner_by_name(SPEC.tenant, SPEC.thread)[1])
    return mountpoint_of(name)


def python(program: str) -> str:
    return f"exec python3 -c {shlex.quote(TOOLS + WRITING + program)}"


def reported(result: ExecResult) -> tuple[str, str]:
    return result.outcome, f"{result.message} {text(result)[-300:]}"


@pytest.mark.parametrize("attack", ATTACKS)
async def test_more_disk_than_the_workspace_may_have_ends_whatever_takes_it(sandbox: Sandbox, attack: str) -> None:
    if NOWHERE in ATTACKS[attack] and os.uname().machine != "x86_64":
        pytest.skip("the program of this attack is for x86-64: run on such a machine")
    ended = await run(sandbox.shell, python(ATTACKS[attack]), timeout_s=50)
    assert reported(ended)[0] == "disk_limit", reported(ended)
    assert "the workspace exceeded its disk limit" in ended.message
    assert "host" not in ended.message


@pytest.mark.parametrize("attack", DIRECTORY_ATTACKS)
async def test_directories_that_lost_their_names_count_for_as_long_as_they_are_open(
    engine: DockerEngine, attack: str
) -> None:
    thread = f"directories-{attack.partition(' ')[0]}"
    sandbox = await engine.create(dataclasses.replace(spec(thread), limits=DIRECTORY_LIMITS))
    try:
        ended = await run(sandbox.shell, python(DIRECTORY_ATTACKS[attack]), timeout_s=50)
        assert reported(ended)[0] == "disk_limit", reported(ended)
    finally:
        await engine.remove(sandbox.id)


async def test_what_a_command_left_behind_is_ended_too(sandbox: Sandbox) -> None:
    before = (await sandbox.health()).pids
    stray = python(ATTACKS["many files"])
    left = await run(sandbox.shell, f"(setsid sh -c {shlex.quote(stray)} >/dev/null 2>&1 &) ; echo left")
    assert (left.outcome, text(left)) == ("exited", "left\n")
    async with asyncio.timeout(50):
        while (await sandbox.health()).pids > before:
            await asyncio.sleep(0.05)
    files = await sandbox.files.ls("/workspace")
    assert 0 < len(files.entries) < MOST_BYTES // (60 * MIB)


async def test_a_background_process_reports_what_ended_it(sandbox: Sandbox) -> None:
    argv = [b"python3", b"-c", (TOOLS + WRITING + ATTACKS["many files"]).encode()]
    await sandbox.processes.start(ProcessSpec("filler", argv))
    ended = await sandbox.processes.wait("filler", wait_s=50)
    assert (ended.running, ended.outcome) == (False, "disk_limit")
    await sandbox.processes.remove("filler")


async def test_past_the_limit_a_command_may_remove_files_but_not_add_to_them(sandbox: Sandbox) -> None:
    # Not much at a time: what is far past the limit is another matter.
    assert reported(await run(sandbox.shell, "head -c 40M /dev/zero > 0"))[0] == "exited"
    for name in ("1", "again"):
        assert (await run(sandbox.shell, f"head -c 40M /dev/zero > {name}; sleep 60")).outcome == "disk_limit"
    assert reported(await run(sandbox.shell, "ls -l && echo a little > note"))[0] == "exited"
    with pytest.raises(NoSpace, match="limit"):
        await sandbox.files.write("/workspace/more", b"x" * MIB)
    with pytest.raises(NoSpace, match="limit"):
        await sandbox.files.mkdir("/workspace/directory")
    await sandbox.files.write("/tmp/elsewhere", b"x" * MIB)
    await sandbox.files.write("/workspace/0", b"short, and so it fits")
    assert reported(await run(sandbox.shell, "rm -f [0-9]* again*; echo gone")) == ("exited", " gone\n")
    await sandbox.files.write("/workspace/more", b"x" * MIB)
    assert reported(await run(sandbox.shell, "head -c 20M /dev/zero > twenty && echo well")) == ("exited", " well\n")


async def refused(call: Awaitable[object]) -> bool:
    """Return whether a file call was refused for want of room."""
    try:
        await call
    except NoSpace:
        return True
    return False


def taken_bytes(engine: DockerEngine) -> int:
    """Return what the files of the workspace take that have names, as the host counts."""
    states = {state.st_ino: state for path in volume(engine).rglob("*") if (state := path.lstat())}
    return sum(state.st_blocks * 512 for state in states.values())


@pytest.mark.parametrize(
    "old",
    [
        "for number in $(seq 0 99); do truncate -s 1000000 $number; done",
        "head -c 1000000 /dev/zero > seed; for number in $(seq 0 99); do ln seed $number; done",
    ],
    ids=["of nothing but a hole", "with another name"],
)
async def test_what_replaces_a_file_that_gives_nothing_back_is_counted(
    engine: DockerEngine, sandbox: Sandbox, old: str
) -> None:
    assert reported(await run(sandbox.shell, old))[0] == "exited"
    said = [await refused(sandbox.files.write(f"/workspace/{number}", b"x" * 1_000_000)) for number in range(100)]
    assert (said[0], said[-1]) == (False, True)
    assert taken_bytes(engine) <= LIMITS.workspace_bytes


async def test_an_edit_counts_by_what_it_can_make_of_a_file(engine: DockerEngine, sandbox: Sandbox) -> None:
    said = []
    for number in range(5):
        await sandbox.files.write(f"/workspace/{number}", b"x" * 20_000)
        edit = sandbox.files.edit(f"/workspace/{number}", b"x", b"y" * 1_000, replace_all=True)
        said.append(await refused(edit))
    assert said == [False, False, False, True, True]
    assert taken_bytes(engine) <= LIMITS.workspace_bytes


async def test_what_comes_counts_before_it_has_a_name(engine: DockerEngine, sandbox: Sandbox) -> None:
    come, go_on = asyncio.Event(), asyncio.Event()

    async def pieces() -> AsyncIterator[bytes]:
        for _ in range(60):
            yield b"x" * MIB
        come.set()
        await go_on.wait()

    first = asyncio.create_task(refused(sandbox.files.write("/workspace/first", pieces())))
    await come.wait()
    coming = [asyncio.create_task(refused(sandbox.files.write(f"/workspace/{n}", pieces()))) for n in range(4)]
    await asyncio.wait(coming, timeout=10)
    go_on.set()
    assert await asyncio.gather(first, *coming) == [False, True, True, True, True]
    assert taken_bytes(engine) <= LIMITS.workspace_bytes


async def test_what_is_read_counts_when_it_has_lost_its_name(sandbox: Sandbox) -> None:
    await sandbox.files.write("/workspace/one", b"x" * 40 * MIB)
    reading = sandbox.files.read("/workspace/one")
    await anext(reading)
    await sandbox.files.remove("/workspace/one")
    assert await refused(sandbox.files.write("/workspace/two", b"x" * 40 * MIB))
    await reading.aclose()
    async with asyncio.timeout(20):
        while await refused(sandbox.files.write("/workspace/two", b"x" * 40 * MIB)):
            await asyncio.sleep(0.05)


async def test_files_of_outputs_count_when_they_have_lost_their_names(sandbox: Sandbox) -> None:
    program = "head -c 30M /dev/zero; sleep 0.5; find . -name '*.out' -o -size +1M -delete; sleep 50"
    said = []
    for number in range(4):
        with contextlib.suppress(NoSpace):
            await sandbox.processes.start(ProcessSpec(f"output{number}", [b"sh", b"-c", program.encode()]))
            said.append(await sandbox.processes.wait(f"output{number}", wait_s=3))
    outcomes = [(await sandbox.processes.wait(f"output{number}", wait_s=1)).outcome for number in range(len(said))]
    for number in range(len(said)):
        await sandbox.processes.remove(f"output{number}")
    assert "disk_limit" in outcomes


async def test_a_file_call_that_finds_no_room_does_not_have_what_is_hidden_be_forgotten(sandbox: Sandbox) -> None:
    # Who waits inside a call holds the file without a descriptor, until it is stopped.
    program = """
import threading
there, full = os.pipe()
os.set_blocking(full, False)
try:
    while os.write(full, bytes(4096)):
        pass
except BlockingIOError:
    os.set_blocking(full, True)
fd = os.open('.', os.O_RDWR | os.O_TMPFILE)
fill(fd, 60 * MIB)
def send():
    try:
        os.sendfile(full, fd, 0, 4096)
    except OSError:
        print('let go', flush=True)
sending = threading.Thread(target=send)
sending.start()
time.sleep(0.3)
os.close(fd)
open('ready', 'w').close()
while not os.path.exists('more'):
    time.sleep(0.01)
sending.join(5)
os._exit(0)
"""
    going_on = asyncio.create_task(run(sandbox.shell, python(program)))
    # What other tests write to this disk meanwhile has the program paused, for it is almost at its limit.
    async with asyncio.timeout(60):
        while not (await sandbox.files.glob("/workspace", "ready")).entries:
            assert not going_on.done(), reported(await going_on)
            await asyncio.sleep(0.05)
    await sandbox.files.write("/workspace/more", b"x" * 4 * MIB)
    assert reported(await going_on) == ("exited", " let go\n")


async def test_far_past_the_limit_nothing_is_started_until_file_calls_made_room(
    engine: DockerEngine, sandbox: Sandbox
) -> None:
    file = volume(engine) / "put-there"
    with file.open("wb") as opened:
        os.posix_fallocate(opened.fileno(), 0, 400 * MIB)
    place = file.parent.stat()
    os.chown(file, place.st_uid, place.st_gid)
    with pytest.raises(NoSpace):
        await sandbox.files.write("/workspace/more", b"x" * 64 * MIB)
    refused = await run(sandbox.shell, "echo started")
    assert reported(refused)[0] == "disk_limit", reported(refused)
    assert (text(refused), "nothing is started" in refused.message) == ("", True)
    with pytest.raises(NoSpace, match="limit"):
        await sandbox.processes.start(ProcessSpec("p", [b"true"]))
    await sandbox.files.remove("/workspace/put-there")
    assert reported(await run(sandbox.shell, "echo started")) == ("exited", " started\n")


async def test_a_stop_before_each_command_leads_no_further_than_far_past_the_limit(engine: DockerEngine) -> None:
    asked = dataclasses.replace(SPEC, thread="disk-stops")
    # Far past: a quarter and at least 256 MiB. A stop loses what the daemon knew.
    try:
        for number in range(2):
            sandbox = await engine.create(asked)
            said = await run(sandbox.shell, "echo begun")
            if number:
                assert (said.outcome, text(said)) == ("disk_limit", "")
            else:
                name = volume_of(engine.instance, owner_by_name(asked.tenant, asked.thread)[1])
                file = mountpoint_of(name) / "put-there"
                with file.open("wb") as opened:
                    os.posix_fallocate(opened.fileno(), 0, 400 * MIB)
                await engine.stop(asked.tenant, asked.thread)
    finally:
        await engine.remove_of(asked.tenant, asked.thread)


async def test_many_names_of_one_file_and_files_with_holes_take_what_they_take(sandbox: Sandbox) -> None:
    program = """
fill(os.open('one', os.O_WRONLY | os.O_CREAT), 40 * MIB)
for number in range(100):
    os.link('one', f'link{number}')
    os.truncate(os.open(f'hole{number}', os.O_WRONLY | os.O_CREAT), 60 * MIB)
os.sync()
fd = os.open('two', os.O_WRONLY | os.O_CREAT)
for number in range(40):
    fill(fd, MIB)
    os.ftruncate(fd, 0)
    time.sleep(0.01)
print('well')
"""
    assert reported(await run(sandbox.shell, python(program))) == ("exited", " well\n")
    counted = (await sandbox.health(count_disk=True)).workspace
    assert counted is not None
    assert 40 * MIB <= counted.size_bytes < LIMITS.workspace_bytes


async def test_disk_cannot_be_taken_without_writing_it_nor_files_be_kept_open_unseen(sandbox: Sandbox) -> None:
    program = """
import errno, fcntl, struct
fd = os.open('file', os.O_RDWR | os.O_CREAT)
def refused(call, *arguments):
    libc.syscall.restype = ctypes.c_long
    assert libc.syscall(call, *arguments) == -1, (call, arguments)
    return ctypes.get_errno()
FALLOCATE, IOCTL, IO_URING_SETUP = (285, 16, 425) if os.uname().machine == 'x86_64' else (47, 29, 425)
size = ctypes.c_long(40 * MIB)
KEEP_SIZE, PUNCH_HOLE, ZERO_RANGE = 1, 2, 16
for mode in (0, KEEP_SIZE, ZERO_RANGE):
    assert refused(FALLOCATE, fd, mode, ctypes.c_long(0), size) == errno.EOPNOTSUPP, mode
reserve = ctypes.create_string_buffer(struct.pack('=hhqqiI16x', 0, 0, 0, 40 * MIB, 0, 0), 48)
for request in (0x40305828, 0x4030582a, 0x40305839, 0x402c582a):
    assert refused(IOCTL, fd, request, reserve) == errno.EOPNOTSUPP, request
# Attributes: a size to grow by, a project. Those it has are set, which any file system lets the owner.
GETXATTR, SETXATTR, GETFLAGS, SETFLAGS, FILE_SETATTR = 0x801c581f, 0x401c5820, 0x80086601, 0x40086602, 469
for get, set_it, size_bytes in ((GETXATTR, SETXATTR, 28), (GETFLAGS, SETFLAGS, 8)):
    has = ctypes.create_string_buffer(size_bytes)
    libc.syscall(IOCTL, fd, get, has)
    assert refused(IOCTL, fd, set_it, has) == errno.EOPNOTSUPP, hex(set_it)
has = ctypes.create_string_buffer(24)
assert refused(FILE_SETATTR, fd, b'', has, ctypes.c_long(24), 0x1000) in (errno.ENOSYS, errno.EPERM)
size = ctypes.c_long(40 * MIB)
assert refused(IO_URING_SETUP, 1, ctypes.create_string_buffer(256)) in (errno.ENOSYS, errno.EPERM)
# What holds files where no one can look: rules of Landlock, and requests on sockets in which files are under way.
for number in (444, 445, 446, 206 if os.uname().machine == 'x86_64' else 0):
    assert refused(number, 8, ctypes.byref(ctypes.c_ulong())) == errno.ENOSYS, number
assert os.fstat(fd).st_blocks == 0
os.posix_fallocate(fd, 0, MIB)
assert os.fstat(fd).st_blocks * 512 >= MIB
assert libc.syscall(FALLOCATE, fd, PUNCH_HOLE | KEEP_SIZE, ctypes.c_long(0), ctypes.c_long(MIB)) == 0
assert os.fstat(fd).st_blocks == 0
fcntl.ioctl(fd, 0x541B, bytes(4))
print('well')
"""
    assert reported(await run(sandbox.shell, python(program))) == ("exited", " well\n")


async def test_nothing_grows_while_the_host_has_less_than_its_reserve(engine: DockerEngine, tmp_path: Path) -> None:
    # More than is free, and less than twice of it.
    reserve_bytes = shutil.disk_usage(tmp_path).free * 3 // 2
    limits = dataclasses.replace(LIMITS, workspace_bytes=1024 * MIB, disk_reserve_bytes=reserve_bytes)
    sandbox = await engine.create(dataclasses.replace(spec("disk-reserve"), limits=limits))
    try:
        with pytest.raises(NoSpace, match="reserve"):
            await sandbox.files.write("/workspace/file", b"x")
        await sandbox.files.write("/tmp/file", b"x")
        assert reported(await run(sandbox.shell, "echo little > file; cat file")) == ("exited", " little\n")
        ended = await run(sandbox.shell, python(ATTACKS["many files"]), timeout_s=50)
        assert ended.outcome == "disk_limit"
        assert "the host's disk is nearly full, though the workspace is within its limit" in ended.message
        refused = await run(sandbox.shell, "rm [0-9]*")
        assert (refused.outcome, "nothing is started" in refused.message) == ("disk_limit", True)
        assert "the host's disk is nearly full" in refused.message
        with pytest.raises(NoSpace, match="reserve"):
            await sandbox.processes.start(ProcessSpec("p", [b"true"]))
        for entry in (await sandbox.files.ls("/workspace")).entries:
            if entry.name != "file":
                await sandbox.files.remove(f"/workspace/{entry.name}")
        assert reported(await run(sandbox.shell, "cat file")) == ("exited", " little\n")
    finally:
        await engine.remove(sandbox.id)


async def test_nothing_starts_while_the_host_has_less_than_half_of_its_reserve(engine: DockerEngine) -> None:
    # More than any disk has.
    limits = dataclasses.replace(LIMITS, disk_reserve_bytes=2**60)
    sandbox = await engine.create(dataclasses.replace(spec("disk-spent"), limits=limits))
    try:
        refused = await run(sandbox.shell, "echo little > file")
        assert (refused.outcome, "the host's disk is nearly full" in refused.message) == ("disk_limit", True)
        with pytest.raises(NoSpace, match="half of its reserve"):
            await sandbox.processes.start(ProcessSpec("p", [b"true"]))
        assert not (await sandbox.files.ls("/workspace")).entries
    finally:
        await engine.remove(sandbox.id)


async def test_what_others_write_to_the_same_disk_ends_nothing(
    engine: DockerEngine, sandbox: Sandbox, tmp_path: Path
) -> None:
    # Who stopped itself stays stopped, and what runs goes on after it was held for the workspace to be counted.
    program = """
sleeper = fork(lambda: os.kill(os.getpid(), signal.SIGSTOP))
os.waitpid(sleeper, os.WUNTRACED)
print('begun', flush=True)
while not os.path.exists('enough'):
    time.sleep(0.01)
assert 'T' in field(sleeper, 'State')
os.kill(sleeper, signal.SIGKILL)
print('well')
"""
    going_on = asyncio.create_task(run(sandbox.shell, python(program)))
    place = volume(engine)
    assert place.stat().st_dev == tmp_path.stat().st_dev, "the test's files are to be on the engine's disk"
    for _ in range(20):
        (tmp_path / "others").write_bytes(os.urandom(MIB) * 30)
        await asyncio.sleep(0)
        (tmp_path / "others").unlink()
    await sandbox.files.write("/workspace/enough", b"")
    assert reported(await going_on) == ("exited", " begun\nwell\n")
