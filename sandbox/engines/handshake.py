"""The handshake with a sandbox's daemon: its release, and its posture. No sandbox is used before."""

import asyncio
from collections.abc import Awaitable, Callable

from sandbox.client.channel import Channel
from sandbox.engines.build import own_build
from sandbox.errors import DaemonLost, SandboxError, SandboxUnavailable
from sandbox.v1 import channel_pb2 as pb

_BOOT_TIMEOUT_S = 10.0
# How often a daemon that is coming up is tried, and how often it is asked whether it has already died.
_CONNECT_INTERVAL_S = 0.002
_INSPECT_INTERVAL_S = 0.25
_SHOWN_DIGITS = 12


async def connected(channel: Channel, boot: asyncio.Future[None], refuse_dead: Callable[[], Awaitable[None]]) -> None:
    """Return as soon as the daemon listens, which may be before `boot`, the start of its container, is done.

    Raises what `boot` does; what `refuse_dead`, asked now and then, raises for a daemon that has ended; and
    SandboxUnavailable when no daemon listens 10 s after the start.
    """
    loop = asyncio.get_running_loop()
    deadline_s = inspect_at_s = float("inf")
    while True:
        try:
            await channel.connect()
            return
        except (FileNotFoundError, ConnectionRefusedError) as error:
            refused = error.strerror or error
        except OSError as error:
            raise SandboxUnavailable(f"the sandbox daemon cannot be reached: {error.strerror or error}") from error
        now_s = loop.time()
        if boot.done():
            boot.result()
            deadline_s = min(deadline_s, now_s + _BOOT_TIMEOUT_S)
            inspect_at_s = min(inspect_at_s, now_s + _INSPECT_INTERVAL_S)
        if now_s > deadline_s:
            raise SandboxUnavailable(f"the sandbox daemon did not start within {_BOOT_TIMEOUT_S:.0f} s ({refused})")
        if now_s > inspect_at_s:
            inspect_at_s = now_s + _INSPECT_INTERVAL_S
            await refuse_dead()
        await asyncio.sleep(_CONNECT_INTERVAL_S)


async def introduced(channel: Channel) -> pb.Posture:
    """Return the daemon's posture; SandboxUnavailable when it is not of this gateway's release."""
    try:
        hello = await channel.hello(timeout_s=5.0)
    except DaemonLost as error:
        raise SandboxUnavailable(f"the handshake with the sandbox failed: {error}") from error
    except SandboxError as error:
        raise SandboxUnavailable(f"the sandbox could not report its isolation: {error}") from error
    refuse_other_build(hello.build)
    return hello.posture


def refuse_other_build(build: str) -> None:
    """Raise SandboxUnavailable for a daemon that was not made of the sources that this gateway has."""
    wanted = own_build()
    if build != wanted:
        # What does not run from a bundle, such as a daemon straight from a source tree, says nothing.
        said = "".join(digit for digit in build[:_SHOWN_DIGITS] if digit.isalnum()) or "unknown"
        raise SandboxUnavailable(
            f"the runtime image and this gateway are from different releases (the image's daemon build is {said}, "
            f"the gateway needs {wanted[:_SHOWN_DIGITS]}): run `airlock images build` to rebuild it"
        )
