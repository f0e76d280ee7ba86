"""gVisor: the same sandbox under another kernel. Where the engine has no runsc this cannot be tried, and says so.

AIRLOCK_RUNSC_ENGINE names an engine that has it, where the usual one has not (docs/deployment.md).
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path

import pytest

from sandbox.engines.docker.docker_engine import DockerEngine
from sandbox.engines.docker.docker_requests import DockerRequests
from sandbox.engines.posture import weaknesses
from sandbox.errors import NotFound
from sandbox.protocols import ProcessSpec
from sandbox.sandbox import Sandbox
from tests.integration.sandbox.live_engine import LIMITS, RUNTIME_IMAGE, instance_id, removed, run, spec, text

# Every way by which tool code could get at the daemon; each line that it prints is a door that was open.
ATTACK = r"""
import ctypes, os, signal, socket
def attempt(name, action):
    try:
        print(name, action())
    except OSError:
        pass
def uids(pid):
    return next(l.split()[1:] for l in open(f'/proc/{pid}/status') if l.startswith('Uid'))
def ppid(pid):
    return next(int(l.split()[1]) for l in open(f'/proc/{pid}/status') if l.startswith('PPid'))
children = [int(p) for p in os.listdir('/proc') if p.isdecimal() and ppid(p) == 1]
server = next(p for p in children if uids(p)[0] not in ('0', str(os.getuid())))
attempt('connected', lambda: socket.socket(socket.AF_UNIX).connect('/run/airlock/daemon.sock'))
attempt('listed', lambda: os.listdir('/run/airlock'))
attempt('replaced', lambda: os.rename('/run/airlock', '/workspace/channel'))
for pid in (1, server):
    attempt('killed', lambda: os.kill(pid, signal.SIGKILL))
    attempt('stopped', lambda: os.kill(pid, signal.SIGSTOP))
    attempt('read', lambda: open(f'/proc/{pid}/mem', 'rb+', buffering=0))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.ptrace(16, pid, 0, 0) == 0:
        print('traced', pid)
    for fd in os.listdir(f'/proc/{pid}/fd') if os.access(f'/proc/{pid}/fd', os.R_OK) else ():
        if 'socket' in os.readlink(f'/proc/{pid}/fd/{fd}'):
            attempt('opened', lambda: os.open(f'/proc/{pid}/fd/{fd}', os.O_RDWR))
for name in ('setuid', 'seteuid', 'setgid'):
    attempt(name, lambda: getattr(os, name)(0))
attempt('groups', lambda: os.setgroups([0]))
for place in ('/', '/opt/airlock', '/etc', '/dev'):
    attempt('wrote ' + place, lambda: os.open(place + '/x', os.O_CREAT | os.O_WRONLY))
def device(place):
    os.mknod(place, 0o20666, os.makedev(1, 1))
    return os.open(place, os.O_RDONLY)
attempt('device of the host', lambda: os.mknod('/workspace/d', 0o20666, os.makedev(1, 1)))
attempt('device', lambda: device('/tmp/d'))
attempt('network', lambda: socket.create_connection(('1.1.1.1', 53), 1))
print('end')
"""


@pytest.fixture
async def gvisor(tmp_path: Path) -> AsyncIterator[DockerEngine]:
    instance = instance_id()
    engine = DockerEngine(
        instance=instance,
        channel_root=tmp_path,
        runtime_image=RUNTIME_IMAGE,
        requests=DockerRequests(os.environ.get("AIRLOCK_RUNSC_ENGINE")),
    )
    try:
        if "runsc" not in (await engine.describe()).runtimes:
            pytest.skip("this engine has no runtime runsc: docs/deployment.md says how to register it")
        yield engine
    finally:
        await removed(engine, instance)


async def _start(sandbox: Sandbox, name: str, command: bytes) -> None:
    await sandbox.processes.start(ProcessSpec(name, [b"/bin/sh", b"-c", command]))


async def test_a_sandbox_of_runsc_does_what_others_do_and_comes_back_after_a_stop(gvisor: DockerEngine) -> None:
    asked = spec("gvisor", runtime="runsc")
    sandbox = await gvisor.create(asked)
    assert sandbox.posture.runtime == "gvisor"
    assert weaknesses(sandbox.posture, asked) == []
    await sandbox.files.write("/workspace/a", b"one\ntwo\n")
    said = await run(sandbox.shell, "cat /workspace/a; id -u; cat /proc/version; exit 3")
    assert (said.outcome, said.exit_code) == ("exited", 3)
    lines = text(said).splitlines()
    assert lines[:3] == ["one", "two", str(sandbox.posture.tool_uid)]
    assert lines[3] not in Path("/proc/version").read_text(encoding="ascii")

    assert (await sandbox.files.edit("/workspace/a", b"two", b"three")).replaced == 1
    assert [entry.name for entry in (await sandbox.files.glob("/workspace", "**/a*")).entries] == ["/workspace/a"]
    found = await sandbox.files.grep("/workspace", "thr")
    assert [match.line for match in found.matches] == [2]
    await sandbox.files.mkdir("/workspace/d/e")
    await sandbox.files.rename("/workspace/a", "/workspace/d/e/b")

    disk = (await sandbox.health(count_disk=True)).workspace
    assert disk is not None
    assert (disk.files >= 4, disk.partial) == (True, False)

    await _start(sandbox, "counting", b"echo begun; sleep 4711")
    await _start(sandbox, "short", b"exit 5")
    assert (await sandbox.processes.wait("short", wait_s=20)).exit_code == 5
    assert [one.running for one in (await sandbox.processes.list()).processes] == [True, False]
    (live,) = await gvisor.listed(asked.tenant)
    used = await gvisor.usage(live)
    assert used is not None
    assert (used.memory_limit_bytes, used.pids) == (LIMITS.memory_bytes, None)
    assert 1_000_000 < (used.memory_bytes or 0) < LIMITS.memory_bytes

    assert await gvisor.stop_idle(sandbox.id)
    assert gvisor.stopped(asked) == sandbox.id
    again = await gvisor.create(asked)
    assert (again.id, again.take_ended_processes()) == (sandbox.id, 1)
    assert (await again.files.stat("/workspace/d/e/b")).size_bytes == len(b"one\nthree\n")


async def test_a_time_limit_holds_under_runsc_and_nothing_survives_it(gvisor: DockerEngine) -> None:
    sandbox = await gvisor.create(spec("gvisor-late", runtime="runsc"))
    late = await run(sandbox.shell, "setsid sleep 4711 & sleep 4711", timeout_s=2)
    assert late.outcome == "timed_out"
    left = await run(sandbox.shell, "cat /proc/[0-9]*/cmdline | tr '\\0' ' '")
    assert "sleep 4711" not in text(left)


async def test_tool_code_gets_at_nothing_of_the_daemon_s_under_runsc(gvisor: DockerEngine) -> None:
    sandbox = await gvisor.create(spec("gvisor-hostile", runtime="runsc"))
    await sandbox.files.write("/tmp/attack.py", ATTACK.encode())
    attacked = await run(sandbox.shell, "python3 /tmp/attack.py")
    assert text(attacked) == "end\n"
    assert text(await run(sandbox.shell, "echo well")) == "well\n"


@pytest.mark.parametrize(
    "glutton",
    ["import os\nwhile True: os.fork()", "held = []\nwhile True: held.append(bytearray(b'x') * 10_000_000)"],
    ids=["processes", "memory"],
)
async def test_limits_end_a_sandbox_of_runsc_and_the_next_one_has_its_files(gvisor: DockerEngine, glutton: str) -> None:
    asked = spec("gvisor-glutton", runtime="runsc")
    sandbox = await gvisor.create(asked)
    await sandbox.files.write("/workspace/glutton.py", glutton.encode())
    ended = await run(sandbox.shell, "python3 /workspace/glutton.py", timeout_s=60)
    # gVisor is one program to the engine: what is past a limit ends it, and everything in it.
    assert ended.outcome == "daemon_lost"
    again = await gvisor.create(asked)
    assert again.id != sandbox.id
    assert text(await run(again.shell, "cat /workspace/glutton.py")) == glutton


async def test_connections_leave_and_enter_a_sandbox_of_runsc_also_after_a_stop(gvisor: DockerEngine) -> None:
    asked = spec("gvisor-network", runtime="runsc")
    sandbox = await gvisor.create(asked)
    for _ in range(2):
        port = await sandbox.network.open()
        script = f"import socket; s = socket.create_connection(('127.0.0.1', {port})); s.sendall(b'question'); "
        script += "s.shutdown(1); print(s.recv(100))"
        running = asyncio.create_task(run(sandbox.shell, f'python3 -c "{script}"'))
        with closing(await sandbox.network.accept()) as tunnel:
            loop = asyncio.get_running_loop()
            question = b""
            while piece := await loop.sock_recv(tunnel, 100):
                question += piece
            await loop.sock_sendall(tunnel, b"answer")
        assert (question, text(await running)) == (b"question", "b'answer'\n")
        assert await gvisor.stop_idle(sandbox.id)
        sandbox = await gvisor.create(asked)
    process = ProcessSpec("server", [b"python3", b"-m", b"http.server", b"8000", b"--bind", b"127.0.0.1"])
    await sandbox.processes.start(process)
    for _ in range(100):
        try:
            tunnel = await sandbox.network.connect(8000)
            break
        except NotFound:
            await asyncio.sleep(0.1)
    with closing(tunnel):
        await asyncio.get_running_loop().sock_sendall(tunnel, b"GET / HTTP/1.0\r\n\r\n")
        assert (await asyncio.get_running_loop().sock_recv(tunnel, 100)).startswith(b"HTTP/1.0 200")
