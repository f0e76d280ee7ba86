"""What really holds this sandbox, read from the kernel: never from the configuration that was asked for."""

from __future__ import annotations

import os

from sandbox.daemon.cgroup import Cgroup
from sandbox.daemon.spawner import Spawner
from sandbox.v1 import channel_pb2 as wire


async def read_posture(spawner: Spawner, cgroup: Cgroup) -> wire.Posture:
    """Return the posture. Nothing is executed, so it works in an image without a single program."""
    output, tool_output = os.pipe()
    try:
        await spawner.probe(tool_output)
    finally:
        os.close(tool_output)
        with open(output, "rb") as file:  # noqa: ASYNC230 - whoever writes has ended
            tool = parse_status(file.read())
    with open(f"/proc/{os.getppid()}/status", "rb") as file:  # noqa: ASYNC230 - in memory
        init = parse_status(file.read())
    return wire.Posture(
        tool_uid=int(tool["Uid"].split()[1]),
        daemon_uid=os.getuid(),
        capabilities_bounding=int(init["CapBnd"], 16),
        tool_capabilities_effective=int(tool["CapEff"], 16),
        no_new_privileges=tool.get("NoNewPrivs") == "1",
        seccomp_mode=int(tool.get("Seccomp", "0")),
        root_read_only=bool(os.statvfs("/").f_flag & os.ST_RDONLY),
        memory_limit_bytes=cgroup.memory_limit_bytes(),
        pids_limit=cgroup.pids_limit(),
        network_interfaces=_network_interfaces(),
        kernel=os.uname().release,
        memory_swap_limit_bytes=cgroup.memory_swap_limit_bytes(),
        cpu_limit_millis=cgroup.cpu_limit_millis(),
    )


def parse_status(text: bytes) -> dict[str, str]:
    """Return the fields of /proc/PID/status."""
    lines = (line.partition(":") for line in text.decode("utf-8", "replace").splitlines())
    return {name: value.strip() for name, _, value in lines}


def _network_interfaces() -> list[str]:
    try:
        with open("/proc/net/dev") as file:
            lines = file.readlines()[2:]
    except OSError:
        return []
    names = (line.partition(":")[0].strip() for line in lines)
    return [name for name in names if name != "lo"]
