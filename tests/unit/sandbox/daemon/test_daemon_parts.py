"""Frames, settings, the wire to init, call trees and control groups."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from sandbox.daemon.failures import Fault, fault_of
from sandbox.daemon.frames import MAX_FRAME_BYTES, BrokenFrame, FrameSocket
from sandbox.daemon.limits.kernel import Cgroup
from sandbox.daemon.programs.exec_request import Program, tool_environment
from sandbox.daemon.settings import read_settings
from sandbox.daemon.supervisor.call_tree import call_of, is_dead
from sandbox.daemon.supervisor.control_wire import decode_program, encode_program
from sandbox.v1 import channel_pb2 as wire
from tests.turns import turns

REPOSITORY = Path(__file__).parents[4]


@pytest.fixture
async def pair() -> AsyncIterator[tuple[FrameSocket, socket.socket]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        yield FrameSocket(ours), theirs


async def test_frames_arrive_whole_however_they_are_cut(pair: tuple[FrameSocket, socket.socket]) -> None:
    frames, peer = pair
    first, second = b"a" * 10, b"b" * 200_000
    data = b"".join(len(body).to_bytes(4, "big") + body for body in (first, second, b""))

    def send() -> None:
        for start in (0, 1, 3, 7, 20):
            end = {0: 1, 1: 3, 3: 7, 7: 20, 20: len(data)}[start]
            peer.sendall(data[start:end])
        peer.shutdown(socket.SHUT_WR)

    sending = asyncio.get_running_loop().run_in_executor(None, send)
    assert [await frames.read() for _ in range(4)] == [first, second, b"", None]
    await sending


async def test_the_event_loop_runs_while_a_frame_comes_byte_by_byte() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)  # each receive returns one byte
    with ours, theirs:
        ours.setblocking(False)
        for byte in (200).to_bytes(4, "big") + b"x" * 200:
            theirs.send(bytes([byte]))
        async with turns() as counted:
            assert await FrameSocket(ours).read() == b"x" * 200
            assert counted.count >= 200 // 64


@pytest.mark.parametrize("data", [(MAX_FRAME_BYTES + 1).to_bytes(4, "big"), b"\0\0", b"\0\0\0\5abc"])
async def test_frames_that_are_too_long_or_cut_off_are_refused(
    pair: tuple[FrameSocket, socket.socket], data: bytes
) -> None:
    frames, peer = pair
    peer.sendall(data)
    peer.shutdown(socket.SHUT_WR)
    with pytest.raises(BrokenFrame):
        await frames.read()


def test_a_program_survives_the_way_to_init() -> None:
    program = ([b"/bin/sh", b"-c", b"echo \xff\n", b""], [b"A=", b"B=x=y"], b"/work space")
    assert decode_program(encode_program(*program)) == program


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["--tool-uid=0"], "never root"),
        (["--tool-uid", "10002"], "must differ"),
        (["--workspace=relative"], "absolute"),
        (["--what=1"], "unknown argument"),
        (["--socket"], "needs a value"),
    ],
)
def test_settings_that_would_be_unsafe_are_refused_with_a_reason(arguments: list[str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read_settings(arguments, {})


def test_an_argument_beats_the_environment_beats_the_default() -> None:
    settings = read_settings(["--tool-uid=5"], {"AIRLOCK_TOOL_UID": "6", "AIRLOCK_TOOL_GID": "7"})
    assert (settings.tool_uid, settings.tool_gid, settings.daemon_uid) == (5, 7, 10002)


def test_limits_of_processes_are_as_asked_or_lower_and_then_no_core_is_dumped() -> None:
    asked = read_settings(["--open-files=100", "--processes=4194304", "--file-bytes=1000"], {}).process_limits
    assert not any(read_settings([], {}).process_limits.values())
    code = (
        "import resource as r, sys; from sandbox.daemon.__main__ import _limit_processes as limit\n"
        "before = r.getrlimit(r.RLIMIT_NPROC)[1]; limit({}); assert r.getrlimit(r.RLIMIT_NPROC)[1] == before\n"
        f"limit({asked!r}); hard = r.getrlimit(r.RLIMIT_NPROC)\n"
        "assert hard == (4194304, 4194304) if before < 0 else hard == (min(before, 4194304),) * 2\n"
        "print(r.getrlimit(r.RLIMIT_NOFILE), r.getrlimit(r.RLIMIT_FSIZE), r.getrlimit(r.RLIMIT_CORE))"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout == "(100, 100) (1000, 1000) (0, 0)\n"


def test_the_daemon_does_not_start_without_root_and_says_why() -> None:
    code = (
        "import os, sandbox.daemon.__main__ as daemon; os.geteuid() or os.seteuid(1000);"
        "os._exit(daemon.main([f'--tool-uid={os.geteuid()}']))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert done.returncode == 78
    assert "must start as root" in done.stderr


STATUS = b"Name:\tsh\nState:\t%s\nUid:\t1\t1\t1\t1\nGroups:\t%s\nThreads:\t%s\n"


def test_a_process_belongs_to_the_call_whose_whole_group_number_it_carries() -> None:
    assert call_of(STATUS % (b"S (sleeping)", b"10 1073741825 ", b"1")) == 1
    assert not call_of(STATUS % (b"S (sleeping)", b"10 10737418250 ", b"1"))
    assert not call_of(STATUS % (b"S (sleeping)", b" ", b"1"))


def test_a_name_cannot_pretend_a_group() -> None:
    # The kernel escapes a newline in a process' name, so the first line cannot end early.
    assert not call_of(b"Name:\t\\nGroups:\t1073741825\nState:\tS\nGroups:\t8 \n")


def test_a_zombie_with_living_threads_is_not_dead() -> None:
    assert is_dead(STATUS % (b"Z (zombie)", b"", b"1"))
    assert not is_dead(STATUS % (b"Z (zombie)", b"", b"3"))
    assert not is_dead(STATUS % (b"S (sleeping)", b"", b"1"))


def test_limits_are_read_from_both_versions_of_control_groups(tmp_path: Path) -> None:
    (tmp_path / "v2").mkdir()
    for name, value in {
        "cgroup.controllers": "cpu memory pids",
        "memory.max": "1000\n",
        "memory.swap.max": "24\n",
        "pids.max": "max\n",
        "cpu.max": "150000 100000\n",
        "memory.events": "low 0\noom 3\noom_kill 2\n",
        "memory.current": "77\n",
        "pids.events": "max 5\n",
        "pids.current": "3\n",
    }.items():
        (tmp_path / "v2" / name).write_text(value)
    cgroup = Cgroup(str(tmp_path / "v2"))
    limits = (cgroup.memory_limit_bytes(), cgroup.memory_swap_limit_bytes(), cgroup.pids_limit())
    assert (*limits, cgroup.cpu_limit_millis(), cgroup.memory_kills()) == (1000, 1024, 0, 1500, 2)
    assert (cgroup.memory_bytes(), cgroup.pids(), cgroup.pids_refused()) == (77, 3, 5)
    for name, value in {
        "memory/memory.limit_in_bytes": "9223372036854771712\n",
        "memory/memory.memsw.limit_in_bytes": "2048\n",
        "memory/memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 4\n",
        "pids/pids.max": "256\n",
        "pids/pids.events": "max 6\n",
        "cpu/cpu.cfs_quota_us": "-1\n",
        "cpu/cpu.cfs_period_us": "100000\n",
    }.items():
        (tmp_path / "v1" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "v1" / name).write_text(value)
    cgroup = Cgroup(str(tmp_path / "v1"))
    limits = (cgroup.memory_limit_bytes(), cgroup.memory_swap_limit_bytes(), cgroup.pids_limit())
    assert (*limits, cgroup.cpu_limit_millis(), cgroup.memory_kills()) == (0, 2048, 256, 0, 4)
    assert (cgroup.memory_bytes(), cgroup.pids(), cgroup.pids_refused()) == (0, 0, 6)


@pytest.mark.parametrize(
    "fields, kind",
    [
        ({}, wire.FAILURE_KIND_INVALID_ARGUMENT),
        ({"argv": [b"a\0b"]}, wire.FAILURE_KIND_INVALID_ARGUMENT),
        ({"argv": [b"a"] * 600_000}, wire.FAILURE_KIND_TOO_LARGE),
        ({"argv": [b"a"], "env": {"A=B": "c"}}, wire.FAILURE_KIND_INVALID_ARGUMENT),
        ({"argv": [b"a"], "cwd": "relative"}, wire.FAILURE_KIND_INVALID_ARGUMENT),
        ({"argv": [b"a"], "cwd": "/etc/passwd"}, wire.FAILURE_KIND_NOT_A_DIRECTORY),
        ({"argv": [b"a"], "stream_limit_bytes": 1}, wire.FAILURE_KIND_INVALID_ARGUMENT),
        (
            {"argv": [b"a"], "stream": True, "stream_limit_bytes": 1, "output_limit": {}},
            wire.FAILURE_KIND_INVALID_ARGUMENT,
        ),
        ({"argv": [b"a"], "stream": True, "stream_limit_bytes": 1 << 41}, wire.FAILURE_KIND_INVALID_ARGUMENT),
        ({"argv": [b"a"], "output_limit": {"spill_quota_bytes": 1 << 41}}, wire.FAILURE_KIND_INVALID_ARGUMENT),
        ({"argv": [b"a"], "output_limit": {"limit_chars": 1, "head_chars": 2}}, wire.FAILURE_KIND_INVALID_ARGUMENT),
        (
            {"argv": [b"a"], "output_limit": {"limit_chars": 1, "spill_path": "/a/../b"}},
            wire.FAILURE_KIND_INVALID_PATH,
        ),
    ],
)
def test_what_cannot_be_run_is_refused_by_field(fields: dict[str, Any], kind: int) -> None:
    with pytest.raises(Fault) as caught:
        Program(wire.ExecRequest(**fields), "/tmp", {})
    assert caught.value.kind == kind


def test_tools_inherit_the_images_environment_but_nothing_of_the_daemons() -> None:
    environment = tool_environment({b"PATH": b"/go/bin", b"AIRLOCK_SOCKET": b"/x", b"HOME": b"/root"}, "/workspace")
    assert environment == {b"PATH": b"/go/bin", b"HOME": b"/workspace", b"LANG": b"C.UTF-8"}


def test_the_server_loads_neither_tls_nor_the_python_protobuf_runtime() -> None:
    code = (
        "from sandbox.daemon import lazy_module; lazy_module.install(); import sandbox.daemon.serving.server, sys;"
        "from sandbox.v1 import channel_pb2 as wire; request = wire.Request(); request.exec.env['a'] = 'b';"
        "assert wire.Request.FromString(request.SerializeToString()) == request;"
        "print([name for name in ('_ssl', '_hashlib', 'google.protobuf.internal.decoder') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n", done.stderr


def test_init_and_what_it_uses_import_only_the_standard_library() -> None:
    code = (
        "import sandbox.daemon.supervisor.init, sandbox.daemon.__main__, sys;"
        "print([name for name in sys.modules if name.startswith('google') or name == 'asyncio'])"
    )
    done = subprocess.run([sys.executable, "-I", "-c", f"import sys; sys.path.insert(0, '.');{code}"],
                          cwd=REPOSITORY, capture_output=True, text=True, check=True)  # fmt: skip
    assert done.stdout == "[]\n", done.stderr


def test_too_many_files_beside_a_forbidden_one_are_what_the_caller_can_change() -> None:
    fault = fault_of(OSError(errno.EOVERFLOW, os.strerror(errno.EOVERFLOW)), "/workspace")
    assert (fault.kind, "remove some" in fault.message) == (wire.FAILURE_KIND_EXHAUSTED, True)
