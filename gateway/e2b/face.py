"""Puts E2B's face together: its routes, and the end of sandboxes in time."""

import contextlib
from collections.abc import AsyncIterator, Sequence

from starlette.routing import BaseRoute

from gateway.e2b.access import Access
from gateway.e2b.envd_face import EnvdRoute, LazyCalls
from gateway.e2b.lifecycle import Lifecycle
from gateway.e2b.rest import RestFace
from gateway.support.background import in_background

PREFIX = "/e2b"


class E2bFace:
    """The REST face and envd's face, both below /e2b."""

    def __init__(self, access: Access, lifecycle: Lifecycle) -> None:
        self._access = access
        self._lifecycle = lifecycle

    def routes(self) -> Sequence[BaseRoute]:
        """Return the routes; a request that names a sandbox is for it, whatever its path."""
        to_sandboxes = EnvdRoute(LazyCalls(self._access, self._lifecycle), PREFIX)
        return [to_sandboxes, *RestFace(self._access, self._lifecycle).routes(PREFIX)]

    @contextlib.asynccontextmanager
    async def following(self) -> AsyncIterator[None]:
        """End sandboxes in time until the block ends."""
        async with in_background(self._lifecycle.follow(), "sandboxes of E2B's SDKs"):
            yield
