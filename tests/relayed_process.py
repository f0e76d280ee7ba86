"""A sandbox's daemon as a local process that is reached over TCP and TLS alone, through the real relay."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from sandbox import tls
from sandbox.client.channel import Channel
from sandbox.client.channel_authority import ChannelAuthority
from sandbox.client.tls_address import TlsAddress
from sandbox.client.unix_address import SOCKET_NAME
from sandbox.engines.local.local_process import LocalProcess
from sandbox.tls.identity import gateway_name, sandbox_name

INSTANCE = "test"
NAME = sandbox_name(INSTANCE, "s1", ("a1", "b2"), 7)
_PACKAGES = Path(tls.__file__).parents[2]


class RelayProcess:
    """`python -m sandbox.tls` beside a daemon's socket; `port` is where it listens on loopback."""

    def __init__(
        self,
        daemon_socket: Path,
        directory: Path,
        authority: ChannelAuthority,
        identity: bytes,
        *,
        own_network: bool = True,
    ) -> None:
        paths = {"--identity": directory / "identity.pem", "--authority": directory / "ca.pem"}
        paths["--identity"].write_bytes(identity)
        paths["--authority"].write_text(authority.ca_pem)
        given = {"--listen": "127.0.0.1:0", "--socket": daemon_socket, "--gateway": gateway_name(INSTANCE), **paths}
        self.process = subprocess.Popen(
            [sys.executable, "-S", "-P", "-m", tls.__name__, *(str(word) for pair in given.items() for word in pair)]
            + ["--serve-own-network"] * own_network,
            env={"PYTHONPATH": str(_PACKAGES)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def ready(self) -> int:
        """Return the port, once the relay listens."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line.startswith("listening on 127.0.0.1:"), line
        return int(line.rpartition(":")[2])

    def end(self) -> None:
        self.process.kill()
        self.process.communicate()


@dataclass
class LateAddress:
    """Satisfies Address: another one, which is known later."""

    address: asyncio.Task[TlsAddress] | None = field(default=None)

    async def open(self) -> socket.socket:
        assert self.address is not None
        return await (await asyncio.shield(self.address)).open()

    def close(self) -> None: ...


class RelayedProcess(LocalProcess):
    """Satisfies `make_process` of MemoryEngine with an authority bound before the other arguments."""

    def __init__(self, authority: ChannelAuthority, root: Path, directory: Path, lock: int) -> None:
        super().__init__(root, directory, lock)
        self._authority = authority
        self._address = LateAddress()
        self.channel = Channel(self._address)
        self._daemon_socket = directory / SOCKET_NAME
        self._left = ExitStack()

    async def start(self) -> None:
        keys = Path(self._left.enter_context(tempfile.TemporaryDirectory()))
        identity = self._authority.sandbox_identity(NAME)
        self.relay = RelayProcess(self._daemon_socket, keys, self._authority, identity)
        self._left.callback(self.relay.end)
        # Without an await before the daemon is started, or one that is ended at once would start it afterwards.
        self._address.address = asyncio.create_task(self._listens())
        await super().start()

    async def _listens(self) -> TlsAddress:
        try:
            port = await asyncio.to_thread(self.relay.ready)
        except AssertionError as error:
            raise ConnectionError(f"the relay ended: {error}") from error
        return TlsAddress("127.0.0.1", port, NAME, self._authority.contexts)

    def end(self) -> None:
        super().end()
        self._left.close()
