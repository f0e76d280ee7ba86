"""The channel over TLS beside the Unix socket, of one daemon in one run: `python -m tests.bench.channel_tls`.

    a call            a health call, which does least, and `true`, on a connection that is there
    a new connection  with both certificates checked, beside connect()
    1 GiB             of stdout, streamed to this process, and of a file, read by it

The daemon and the relay are processes of this machine, so TLS takes the processor from what it is compared with; the
network between two machines comes on top.
"""

from __future__ import annotations

import asyncio
import tempfile
from functools import partial
from pathlib import Path

from rich.console import Console
from rich.table import Table

from sandbox.client.channel import Address, Channel
from sandbox.client.channel_authority import ChannelAuthority
from sandbox.client.channel_sandbox import ChannelSandbox
from sandbox.client.unix_address import UnixAddress
from sandbox.protocols import OutputStream, ProgramSpec
from sandbox.sandbox import SandboxSpec
from sandbox.v1 import channel_pb2 as pb
from tests.bench.side_by_side import Sample, medians_s
from tests.relayed_process import INSTANCE, RelayedProcess

_GIB = 1024**3
_CALLS = 50


async def _health(sandbox: ChannelSandbox) -> None:
    await sandbox.health()


async def _true(sandbox: ChannelSandbox) -> None:
    request = pb.Request(exec=pb.ExecRequest(argv=[b"true"]))
    await sandbox.channel.query(request, "exec", lambda reply: reply, timeout_s=60)


async def _connect(address: Address, _sandbox: ChannelSandbox) -> None:
    (await address.open()).close()


async def _stdout(sandbox: ChannelSandbox) -> None:
    size = 0

    async def take(_stream: OutputStream, data: bytes) -> None:
        nonlocal size
        size += len(data)

    spec = ProgramSpec((b"head", b"-c", b"1G", b"/dev/zero"), timeout_s=120, output_limit_bytes=_GIB)
    await sandbox.shell.run_program(spec, stdin=None, on_output=take)
    assert size == _GIB


async def _read(sandbox: ChannelSandbox) -> None:
    size = 0
    async for data in sandbox.files.read("/workspace/large"):
        size += len(data)
    assert size == _GIB


async def _measured(directory: Path) -> tuple[Table, Table]:
    for name in ("root/workspace", "root/tmp", "channel"):
        (directory / name).mkdir(parents=True)
    with (directory / "root/workspace/large").open("wb") as large:
        large.truncate(_GIB)
    authority = ChannelAuthority.open(directory / "channels.pem", INSTANCE)
    with (directory / "lock").open("w") as lock:
        process = RelayedProcess(authority, directory / "root", directory / "channel", lock.fileno())
        await process.start()
        addresses: dict[str, Address] = {
            "unix": UnixAddress(directory / "channel"),
            "tls": process.channel._address,
        }
        try:
            return await _tables(addresses)
        finally:
            process.channel.close()
            await asyncio.to_thread(process.end)


async def _tables(addresses: dict[str, Address]) -> tuple[Table, Table]:
    sandboxes = {
        name: ChannelSandbox("s", SandboxSpec("t", "t", "image"), Channel(address), pb.Posture())
        for name, address in addresses.items()
    }
    calls, streams = {}, {}
    for name, sandbox in sandboxes.items():
        await sandbox.health()
        calls |= {
            f"{name} a health call": (partial(_health, sandbox), _CALLS),
            f"{name} true": (partial(_true, sandbox), 5),
            f"{name} a new connection": (partial(_connect, addresses[name], sandbox), 5),
        }
        streams |= {f"{name} stdout": (partial(_stdout, sandbox), 1), f"{name} file": (partial(_read, sandbox), 1)}
    samples: dict[str, tuple[Sample, int]] = calls
    p50_s = await medians_s(samples, samples=40, warmup=4)
    quick = Table("a call", "unix p50 ms", "tls p50 ms", "more ms", "goal", box=None, header_style="bold")
    for what in ("a health call", "true", "a new connection"):
        unix, tls = p50_s[f"unix {what}"] * 1000, p50_s[f"tls {what}"] * 1000
        goal = "" if what == "a new connection" else "<= +1"
        quick.add_row(what, f"{unix:.3f}", f"{tls:.3f}", f"{tls - unix:+.3f}", goal)
    p50_s = await medians_s(streams, samples=3, warmup=1)
    large = Table("1 GiB", "unix MiB/s", "tls MiB/s", "ratio", box=None, header_style="bold")
    for what in ("stdout", "file"):
        unix, tls = 1024 / p50_s[f"unix {what}"], 1024 / p50_s[f"tls {what}"]
        large.add_row(what, f"{unix:.0f}", f"{tls:.0f}", f"{tls / unix:.2f}")
    for sandbox in sandboxes.values():
        sandbox.close()
    return quick, large


def main() -> None:
    """Measure and print."""
    with tempfile.TemporaryDirectory(prefix="airlock-bench-") as directory:
        for table in asyncio.run(_measured(Path(directory))):
            Console().print(table)


if __name__ == "__main__":
    main()
