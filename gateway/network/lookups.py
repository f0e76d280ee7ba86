"""Names looked up as the gateway's machine does it, in threads of their own, in turns that are fair between tenants.

The C library's look-up blocks its thread, for tens of seconds where a name server does not answer, and the owner of a
name may see to that. So a tenant has some of the threads only, and they are not those that the rest of a gateway uses.
"""

import asyncio
import socket
import threading
from collections.abc import Callable
from contextlib import suppress

from agent.cancellation import in_own_task, to_the_end
from gateway.support.current_tenant import CURRENT_TENANT
from sandbox.fair_semaphore import FairSemaphore

_PLACES, _OF_ONE = 64, 16
Blocking = Callable[[str, int], list[str]]


def getaddrinfo(host: str, port: int) -> list[str]:
    """Return the addresses of a name, in the order of RFC 6724. Raises OSError or UnicodeError."""
    return [str(address[0]) for *_, address in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)]


class Lookups:
    """Looks names up in at most `places` threads at once, `of_one` of them for the tenant of the current task."""

    def __init__(self, blocking: Blocking = getaddrinfo, places: int = _PLACES, of_one: int = _OF_ONE) -> None:
        self._blocking = blocking
        self._turns = FairSemaphore(places, of_one=of_one)

    async def __call__(self, host: str, port: int) -> list[str]:
        """Return the addresses of a name. Raises OSError or UnicodeError. A caller that is cancelled leaves at once."""
        # If cancelled, it leaves the queue, or keeps its place for as long as its thread is busy.
        return await in_own_task(self._in_turn(host, port))

    async def _in_turn(self, host: str, port: int) -> list[str]:
        async with self._turns.turn(CURRENT_TENANT.get() or ""):
            return await to_the_end(self._in_thread(host, port))

    async def _in_thread(self, host: str, port: int) -> list[str]:
        loop = asyncio.get_running_loop()
        found: asyncio.Future[list[str]] = loop.create_future()

        def look() -> None:
            try:
                answer = self._blocking(host, port)
            except Exception as error:
                report(found.set_exception, error)
            else:
                report(found.set_result, answer)

        def report(method: Callable[..., object], value: object) -> None:
            with suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(lambda: found.done() or method(value))

        # A daemon: a gateway that stops does not wait for a name server.
        threading.Thread(target=look, name="lookup", daemon=True).start()
        return await found
