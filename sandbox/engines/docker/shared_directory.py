"""SharedDirectory: channels of an engine on this machine: Unix sockets in directories that both see at one path."""

# ruff: noqa: ARG002 - there is less to do than for another machine, and owners do not matter

import asyncio
import os
import shutil
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sandbox.client.channel import Channel
from sandbox.client.unix_address import SOCKET_NAME, UnixAddress
from sandbox.engines.containment import CHANNEL_DIRECTORY
from sandbox.engines.docker.channels import Opening
from sandbox.engines.docker.request_threads import Lane
from sandbox.sandbox import Owner


@dataclass(frozen=True)
class SharedDirectory:
    """Satisfies Channels, with a directory in `root` for each sandbox. Removing them blocks threads of `lane`."""

    root: Path
    lane: Lane

    @property
    def group(self) -> int:
        # Root in the container has no power over files of other users, so it enters by the gateway's group.
        return os.getgid()

    def mount(self, sandbox_id: str) -> dict[str, Any]:
        return {"Type": "bind", "Source": str(self.root / sandbox_id), "Target": CHANNEL_DIRECTORY}

    def begin(self, owner: Owner | None, sandbox_id: str, *, again: bool = False) -> Opening:
        directory = self.root / sandbox_id
        if again:
            # Of the daemon that has ended: a channel keeps to the first socket that it sees.
            (directory / SOCKET_NAME).unlink(missing_ok=True)
        else:
            self.root.mkdir(parents=True, exist_ok=True, mode=0o700)
            directory.mkdir()
            os.chown(directory, -1, self.group)
            directory.chmod(0o770)
        ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        ready.set_result(None)
        return Opening(Channel(UnixAddress(directory)), ready)

    def to(self, owner: Owner, sandbox_id: str) -> Channel:
        return Channel(UnixAddress(self.root / sandbox_id))

    async def claimed(self, owner: Owner, sandbox_id: str, channel: Channel) -> Channel:
        return channel

    async def stopped(self, sandbox_id: str) -> None: ...

    async def remove(self, sandbox_id: str) -> None:
        await self.lane.begin(lambda: shutil.rmtree(self.root / sandbox_id, ignore_errors=True))

    async def left(self) -> Collection[str]:
        return ()
