"""Health, and what an idle server does without."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from sandbox.daemon.limits.disk_use import DiskUse
from sandbox.daemon.limits.kernel import Cgroup
from sandbox.daemon.serving.server import Health
from sandbox.v1 import channel_pb2 as wire

REPOSITORY = Path(__file__).parents[5]


def test_health_reports_the_numbers_of_the_cgroup(tmp_path: Path) -> None:
    for name, value in {
        "cgroup.controllers": "memory pids",
        "memory.current": "1000\n",
        "memory.events": "oom_kill 2\n",
        "pids.current": "7\n",
        "pids.events": "max 3\n",
    }.items():
        (tmp_path / name).write_text(value)
    health = Health(Cgroup(str(tmp_path)))
    health.calls = 4
    reply = health.reply(5).health
    assert (reply.calls, reply.processes, reply.pids, reply.memory_bytes) == (4, 5, 7, 1000)
    assert (reply.memory_kills, reply.pids_refused) == (2, 3)


def test_health_reports_disk_usage_as_far_as_it_is_known(tmp_path: Path) -> None:
    use = DiskUse()
    use.size_bytes, use.files, use.hidden = 1000.75, 3, True
    reply = Health(Cgroup(str(tmp_path))).reply(0, use, None).health
    assert reply.workspace == wire.DiskCount(size_bytes=1000, files=3, partial=True)
    assert not reply.HasField("tmp")


def test_health_is_reported_without_a_cgroup(tmp_path: Path) -> None:
    reply = Health(Cgroup(str(tmp_path))).reply(0).health
    assert (reply.pids, reply.memory_bytes, reply.memory_kills, reply.pids_refused) == (0, 0, 0, 0)


def test_a_server_without_background_processes_does_not_load_their_code() -> None:
    code = (
        "import sandbox.daemon.serving.server, sys;"
        "print([name for name in sys.modules if 'process' in name.rpartition('.')[2] and name.startswith('sandbox')"
        " or name in ('sandbox.daemon.programs.terminal', 'sandbox.daemon.programs.process_io', 'termios')])"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n", done.stderr
