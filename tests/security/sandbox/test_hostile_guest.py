"""Everything that tool code can do to the daemon from inside, each done to a live sandbox.

During an attack the daemon says within a second how it is; after it the same daemon, never restarted, works as before.
"""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from sandbox.engines.docker.docker_engine import DockerEngine
from sandbox.errors import NoSpace
from sandbox.sandbox import SandboxLimits
from tests.integration.sandbox.live_engine import run, spec
from tests.security.sandbox.hostile_guest import Guest

pytestmark = pytest.mark.asyncio(loop_scope="session")

MIB = 1024 * 1024
# A small workspace counts as full when other tests fill the disk and the crowds of these cannot be paused to count it.
LIMITS = SandboxLimits(memory_bytes=256 * MIB, workspace_bytes=4096 * MIB, pids=300)


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def made(engine: DockerEngine) -> AsyncIterator[Guest]:
    sandbox = await engine.create(dataclasses.replace(spec("hostile-guest"), limits=LIMITS))
    yield Guest(sandbox, engine.instance)
    await engine.remove(sandbox.id)


@pytest_asyncio.fixture(loop_scope="session")
async def guest(made: Guest) -> AsyncIterator[Guest]:
    yield made
    await run(made.sandbox.shell, "rm -rf /tmp/* /dev/shm/* /workspace/*; ipcrm --all; true")


async def test_a_fork_bomb(guest: Guest) -> None:
    await guest.survives("""
told = False
while True:
    try:
        os.fork()
    except OSError:
        if not told:
            told = True
            worst()
""")


async def test_one_process_that_takes_all_memory_over_and_over(guest: Guest) -> None:
    await guest.survives("dying_last(); worst(); eat_again_and_again(); forever()")


async def test_many_processes_each_smaller_than_the_daemon_that_take_all_memory(guest: Guest) -> None:
    # The kernel kills the largest of those with the highest score, so these must not get at the daemon's score.
    # How far they get is the kernel's business, it may let them crawl at the limit for minutes: so health is asked
    # for meanwhile.
    written = await guest.survives(
        """
print(dying_last(), flush=True)
def small():
    dying_last()
    kept = eat(3 << 20)
    forever()
crowd(small, 40)
worst()
crowd(small, 160)
eat_again_and_again()
forever()
""",
        samples=100,
    )
    assert written.startswith(("None\n", "800\n"))


async def test_all_memory_taken_by_what_the_kernel_keeps_for_processes_that_look_small(guest: Guest) -> None:
    await guest.survives("""
import socket
def sockets():
    dying_last()
    kept = []
    while True:
        try:
            kept.append(socket.socketpair())
            kept[-1][0].setblocking(False)
            while kept[-1][0].send(bytes(65536)):
                pass
        except BlockingIOError:
            pass
        except OSError:
            forever()
worst()
for _ in range(4):
    os.waitpid(crowd(sockets, 20)[0], 0)
forever()
""")


async def test_a_full_tmp_and_shared_memory_leave_the_daemon_its_reserve(guest: Guest) -> None:
    await guest.survives("""
import errno
for place in ('/tmp', '/dev/shm'):
    number = 0
    while True:
        file = os.open(f'{place}/full{number}', os.O_WRONLY | os.O_CREAT)
        try:
            while os.write(file, bytes(65536)):
                pass
        except OSError as error:
            if error.errno == errno.ENOSPC:
                break
            number += 1
worst()
eat_again_and_again()
forever()
""")
    with pytest.raises(NoSpace):
        await guest.sandbox.files.write("/tmp/more", b"x" * MIB)


async def test_files_without_end_are_refused_before_they_take_the_reserve(guest: Guest) -> None:
    written = await guest.survives("""
import errno
for place in ('/tmp', '/dev/shm'):
    try:
        for number in range(1_000_000):
            os.mknod(f'{place}/{number:0250}')
    except OSError as error:
        print(errno.errorcode[error.errno], flush=True)
worst()
eat_again_and_again()
forever()
""")
    assert written.startswith("ENOSPC\nENOSPC\n")


async def test_a_directory_of_very_many_files_is_listed_and_removed_while_others_ask(guest: Guest) -> None:
    await guest.survives("""
os.mkdir('/workspace/many')
for number in range(10_000):
    os.mknod(f'/workspace/many/{number}')
worst()
forever()
""")
    assert (await guest.sandbox.files.ls("/workspace/many", limit=10)).total == 10_000
    await guest.sandbox.files.remove("/workspace/many", recursive=True)
    await guest.works()


async def test_system_v_and_posix_ipc_that_outlives_its_makers(guest: Guest) -> None:
    await guest.survives("""
IPC_CREAT = 0o1600
libc.shmat.restype = ctypes.c_void_p
taken = {'shm': 0, 'msg': 0, 'sem': 0, 'mq': 0}
while (segment := libc.shmget(0, 1 << 20, IPC_CREAT)) >= 0:
    ctypes.memset(libc.shmat(segment, None, 0), 1, 1 << 20)
    taken['shm'] += 1
while (queue := libc.msgget(0, IPC_CREAT)) >= 0:
    while not libc.msgsnd(queue, ctypes.byref(ctypes.c_long(1)), 0, 0o4000):
        taken['msg'] += 1
while libc.semget(0, 250, IPC_CREAT) >= 0:
    taken['sem'] += 1
O_CREAT_WRONLY = 0o101
while libc.mq_open(b'/%d' % taken['mq'], O_CREAT_WRONLY, 0o600, None) >= 0:
    taken['mq'] += 1
print(taken, flush=True)
worst()
eat_again_and_again()
forever()
""")
    await guest.attempt("[os.unlink(f'/dev/mqueue/{name}') for name in os.listdir('/dev/mqueue')]")


async def test_pipes_that_are_filled_and_never_read(guest: Guest) -> None:
    await guest.survives("""
def fill():
    kept = []
    try:
        while True:
            kept.append(os.pipe())
            os.set_blocking(kept[-1][1], False)
            try:
                while os.write(kept[-1][1], bytes(65536)):
                    pass
            except BlockingIOError:
                pass
    except OSError:
        forever()
crowd(fill, 10)
os.set_blocking(1, True)
worst()
while True:
    os.write(2, bytes(1 << 20))
""")


async def test_output_without_end_from_many_processes(guest: Guest) -> None:
    await guest.survives("""
worst()
def shout():
    while True:
        os.write(1, b'x' * (1 << 20))
crowd(shout, 50)
shout()
""")


async def test_every_signal_to_everybody_within_reach(guest: Guest) -> None:
    await guest.survives("""
target = server()
worst()
for number in range(1, 65):
    for pid in (1, target, -target):
        try:
            os.kill(pid, number)
        except (PermissionError, ProcessLookupError):
            pass
fork(lambda: os.kill(-1, signal.SIGKILL))
forever()
""")
    await guest.attempt("""
target = server()
for pid in (1, target):
    for number in range(65):
        try:
            os.kill(pid, number)
        except OSError:
            continue
        sys.exit(f'{pid} took signal {number}')
""")


async def test_nothing_of_the_daemon_can_be_traced_read_or_taken(guest: Guest) -> None:
    await guest.attempt("""
import resource
ATTACH, SEIZE = 16, 0x4206
PIDFD_OPEN, PIDFD_GETFD, KCMP, MADVISE = 434, 438, 312, 440
reached = []
class Vector(ctypes.Structure):
    _fields_ = [('base', ctypes.c_void_p), ('length', ctypes.c_size_t)]
def took(what, result):
    if result >= 0:
        reached.append(what)
def could(what, action):
    try:
        action()
        reached.append(what)
    except OSError:
        pass
for pid in (1, server()):
    took('ptrace', libc.ptrace(ATTACH, pid, 0, 0))
    took('seize', libc.ptrace(SEIZE, pid, 0, 0))
    buffer = ctypes.create_string_buffer(8)
    here = Vector(ctypes.addressof(buffer), 8)
    for call in (libc.process_vm_readv, libc.process_vm_writev):
        for address in (0x400000, 0x7fffffffe000):
            took('vm', call(pid, ctypes.byref(here), 1, ctypes.byref(Vector(address, 8)), 1, 0))
    pidfd = libc.syscall(PIDFD_OPEN, pid, 0)
    for fd in range(16):
        took('pidfd_getfd', libc.syscall(PIDFD_GETFD, pidfd, fd, 0))
    took('madvise', libc.syscall(MADVISE, pidfd, ctypes.byref(here), 1, 21, 0))
    took('kcmp', libc.syscall(KCMP, os.getpid(), pid, 0, 0, 0))
    for name in ('mem', 'environ', 'maps', 'auxv', 'syscall', 'stack', 'pagemap', 'io', 'fdinfo', 'fd', 'map_files',
                 'personality', 'timers'):
        path = f'/proc/{pid}/{name}'
        could(path, lambda: os.listdir(path) if os.path.isdir(path) else open(path, 'rb').read(1))
    for name in ('root', 'cwd', 'exe', 'ns/mnt', 'fd/3'):
        could(name, lambda: os.stat(f'/proc/{pid}/{name}/.'))
        could(name, lambda: os.readlink(f'/proc/{pid}/{name}'))
    for name in ('oom_score_adj', 'oom_adj', 'comm', 'mem', 'clear_refs', 'coredump_filter', 'timerslack_ns'):
        could(name, lambda: os.close(os.open(f'/proc/{pid}/{name}', os.O_WRONLY)))
    could('prlimit', lambda: resource.prlimit(pid, resource.RLIMIT_NOFILE, (0, 0)))
sys.exit(f'reached {reached}' if reached else 0)
""")
    await guest.works()


async def test_the_daemon_cannot_be_slowed_down_by_its_scheduling(guest: Guest) -> None:
    await guest.attempt("""
IOPRIO_SET, MIGRATE_PAGES, MOVE_PAGES, SCHED_SETATTR = 251, 256, 279, 314
IDLE_CLASS = 3 << 13
import struct
idle = struct.pack('=IIQiIQQQ', 48, 5, 0, 0, 0, 0, 0, 0)
reached = []
def could(what, action):
    try:
        action()
        reached.append(what)
    except OSError:
        pass
for pid in (1, server()):
    before = open(f'/proc/{pid}/stat').read().rpartition(')')[2].split()[16:18]
    could('nice', lambda: os.setpriority(os.PRIO_PROCESS, pid, 19))
    could('group', lambda: os.setpriority(os.PRIO_PGRP, pid, 19))
    could('user', lambda: os.setpriority(os.PRIO_USER, int(field(server(), 'Uid')[0]), 19))
    could('affinity', lambda: os.sched_setaffinity(pid, {0}))
    for policy in (os.SCHED_IDLE, os.SCHED_BATCH, os.SCHED_OTHER):
        could('policy', lambda: os.sched_setscheduler(pid, policy, os.sched_param(0)))
    for number, arguments in ((IOPRIO_SET, (1, pid, IDLE_CLASS)), (MIGRATE_PAGES, (pid, 0, 0, 0)),
                              (MOVE_PAGES, (pid, 0, 0, 0, 0, 0)), (SCHED_SETATTR, (pid, idle, 0))):
        if libc.syscall(number, *arguments) >= 0:
            reached.append(number)
    assert before == open(f'/proc/{pid}/stat').read().rpartition(')')[2].split()[16:18]
os.setpriority(os.PRIO_USER, 0, 19)
sys.exit(f'reached {reached}' if reached else 0)
""")
    await guest.works()


async def test_every_descriptor_that_the_limits_allow_is_kept_open(guest: Guest) -> None:
    await guest.survives("""
def hold():
    kept = []
    try:
        while True:
            kept.append(os.open('/dev/null', os.O_RDONLY))
    except OSError:
        forever()
crowd(hold, 15)  # of 4,096 each, and 65,536 are for all of them
worst()
forever()
""")


async def test_everything_that_the_kernel_counts_by_user_used_up(guest: Guest) -> None:
    await guest.survives("""
import select
kept = []
while (instance := libc.inotify_init1(0)) >= 0:
    kept.append(instance)
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGRTMIN})
while libc.sigqueue(os.getpid(), signal.SIGRTMIN, 0) == 0:
    pass
for number in range(50):
    try:
        kept.append(select.epoll())
        kept.append(os.open('/dev/ptmx', os.O_RDWR | os.O_NOCTTY))
    except OSError:
        break
worst()
forever()
""")


async def test_processes_that_spin_on_every_processor(guest: Guest) -> None:
    await guest.survives("""
start_s = time.monotonic() + 1.5
def spin():
    # All are there before the first one spins, or the last ones would be long in coming.
    time.sleep(max(0, start_s - time.monotonic()) + os.getpid() % 256 / 256)
    while True:
        pass
crowd(spin, 280)
time.sleep(max(0, start_s - time.monotonic()) + 1)
worst()
forever()
""")


async def test_threads_without_end(guest: Guest) -> None:
    await guest.survives("""
import threading
threading.stack_size(64 * 1024)
try:
    while True:
        threading.Thread(target=forever, daemon=True).start()
except RuntimeError:
    worst()
forever()
""")
