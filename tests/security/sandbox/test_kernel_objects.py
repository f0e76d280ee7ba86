"""Sockets, terminals and open files of one sandbox: the host has them for all, and no control group limits them.

The attacks are bounded: each opens a few more than the limit, and puts little in them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from sandbox.daemon.limits.kernel import OPEN_FILES_LIMIT, TERMINALS_LIMIT, KernelUse
from sandbox.engines.docker.docker_engine import DockerEngine
from sandbox.sandbox import Sandbox
from tests.integration.sandbox.live_engine import LIMITS, run, spec, text

pytestmark = pytest.mark.asyncio(loop_scope="session")

SOCKETS_LIMIT = KernelUse(LIMITS.memory_bytes).sockets_limit


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def sandbox(engine: DockerEngine) -> AsyncIterator[Sandbox]:
    # Enough room on the disk that what others write there has nothing looked at.
    limits = dataclasses.replace(LIMITS, workspace_bytes=16 * 1024**3)
    made = await engine.create(dataclasses.replace(spec("kernel-objects"), limits=limits))
    yield made
    await engine.remove(made.id)


def python(body: str) -> str:
    return f"exec python3 -c '{body}'"


HOLD = "import time; time.sleep(20)"
MANY_SOCKETS = "import os, pty, socket; kept = [socket.socketpair() for _ in range(%d)]; "
MANY_TERMINALS = 'import os, pty, socket; kept = [os.open("/dev/ptmx", os.O_RDWR | os.O_NOCTTY) for _ in range(%d)]; '
MANY_FILES = (
    "import os, time; kept = []; "
    '[os.fork() or ([os.open("/dev/null", 0) for _ in range(4000)], time.sleep(30), os._exit(0)) for _ in range(%d)]; '
)


@pytest.mark.parametrize(
    "most, too_many",
    [
        (MANY_SOCKETS % (SOCKETS_LIMIT // 2 - 20), MANY_SOCKETS % (SOCKETS_LIMIT // 2 + 20)),
        (MANY_TERMINALS % (TERMINALS_LIMIT - 8), MANY_TERMINALS % (TERMINALS_LIMIT + 8)),
        (MANY_FILES % (OPEN_FILES_LIMIT // 4000), MANY_FILES % (OPEN_FILES_LIMIT // 4000 + 2)),
    ],
    ids=["sockets", "terminals", "open files"],
)
async def test_everything_is_ended_past_the_limit_and_what_is_below_it_goes_on(
    sandbox: Sandbox, most: str, too_many: str
) -> None:
    within = await run(sandbox.shell, python(most + "import time; time.sleep(0.5); print(len(kept))"))
    assert within.outcome == "exited", within
    ended = await run(sandbox.shell, python(too_many + HOLD))
    assert ended.outcome == "out_of_memory"
    assert "sockets, terminals or open files" in ended.message
    assert text(await run(sandbox.shell, "echo well")) == "well\n"


async def test_what_was_left_running_is_ended_as_well(sandbox: Sandbox) -> None:
    left = python(MANY_TERMINALS % (TERMINALS_LIMIT + 8) + HOLD).replace("exec ", "setsid ", 1) + " >/dev/null 2>&1 &"
    await run(sandbox.shell, left)
    waited = await run(sandbox.shell, "exec sleep 19")
    assert waited.outcome == "out_of_memory"
    assert text(await run(sandbox.shell, "ls /dev/pts")) == "ptmx\n"


async def test_tcp_buffers_do_not_grow_past_the_size_of_others(sandbox: Sandbox) -> None:
    sizes = text(await run(sandbox.shell, "cut -f 3 /proc/sys/net/ipv4/tcp_rmem /proc/sys/net/ipv4/tcp_wmem"))
    assert sizes == "212992\n212992\n"


async def test_a_burst_over_loopback_arrives_whole(sandbox: Sandbox) -> None:
    body = (
        'import socket, threading; server = socket.create_server(("127.0.0.1", 0));'
        "client = socket.create_connection(server.getsockname()); far, _ = server.accept();"
        "sending = threading.Thread(target=lambda: (client.sendall(bytes(1 << 24)), client.close())); sending.start();"
        'print(sum(len(piece) for piece in iter(lambda: far.recv(1 << 16), b"")))'
    )
    assert text(await run(sandbox.shell, python(body))) == f"{1 << 24}\n"


async def test_tenants_neither_lock_nor_watch_each_others_daemons_files(engine: DockerEngine) -> None:
    made = await engine.create(spec("locks", "tenant-b"))
    attack = """python3 - <<'END'
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
watch = libc.inotify_init1(os.O_CLOEXEC)
handle = os.open('/opt/airlock', os.O_PATH)
for place in ('/opt/airlock', '/opt/airlock/lib', '/opt/airlock/bin/python3', f'/proc/self/fd/{handle}', '/proc/1/exe'):
    try:
        os.open(place, os.O_RDONLY)
        print('opened', place)
    except OSError:
        pass
    if libc.inotify_add_watch(watch, place.encode(), 0xFFF) >= 0:
        print('watched', place)
print('end')
END
"""
    try:
        assert text(await run(made.shell, attack)) == "end\n"
    finally:
        await engine.remove(made.id)
