"""A stream of approvals that survives restarts of the gateway."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gateway.client import Approval, Client

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.25, 5.0


async def watched(
    airlock: Client, say: Callable[[str], None], caught_up: Callable[[], None] = lambda: None
) -> AsyncIterator[Approval]:
    """Yield the pending approvals, call `caught_up`, then yield each change; start over after an outage.

    `say` is called when the gateway goes away and when it is back. Raises Unavailable if it was never there.
    """
    from gateway.errors import Unavailable

    was_there = gone = False
    pause_s = _FIRST_PAUSE_S

    def here() -> None:
        nonlocal was_there, gone, pause_s
        if gone:
            say("the gateway is back; showing pending approvals again")
        was_there, gone, pause_s = True, False, _FIRST_PAUSE_S

    def all_seen() -> None:
        here()
        caught_up()

    while True:
        try:
            async for approval in airlock.watch_approvals(all_seen, resume=False):
                here()
                yield approval
        except Unavailable as error:
            if not was_there:
                raise
            if not gone:
                say(f"the gateway is gone ({error}); reconnecting until Ctrl-C")
            gone = True
        await asyncio.sleep(pause_s)
        pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
