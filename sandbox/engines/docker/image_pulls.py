"""ImagePulls: images that an engine does not have are pulled, once for all waiting calls, within a time limit.

A call waits a little; the pull goes on, and a later call finds the image. A failed pull is not repeated for a while, so
a registry that is out of reach costs each call a lookup only. A few pulls run at once, in threads of their own that no
other request waits for and that do not keep a process from ending.
"""

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from sandbox.engines.docker.docker_requests import Client, DockerRequests, inspect_image
from sandbox.engines.engine import Creator
from sandbox.errors import EngineUnavailable, ImageMissing, SandboxError, SandboxUnavailable
from sandbox.sandbox import Sandbox, SandboxSpec

log = logging.getLogger(__name__)

_AT_ONCE = 2
_FAILURE_KEPT_S = 30.0
_FAILURES_LIMIT = 1000


@dataclass(frozen=True)
class _Pull:
    """A pull under way: its `end` is why it failed, None for an image that is there."""

    began_s: float
    end: asyncio.Future[SandboxError | None]


class ImagePulls:
    """Pulls images for one process; a call waits `wait_s` for one, which takes `timeout_s` at most."""

    def __init__(
        self,
        requests: DockerRequests,
        *,
        wait_s: float = 10.0,
        timeout_s: float = 600.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._requests = requests
        self._wait_s = wait_s
        self._timeout_s = timeout_s
        self._clock = clock
        self._pulls: dict[str, _Pull] = {}
        self._failed: dict[str, tuple[float, SandboxError]] = {}
        self._closed = threading.Event()

    async def pull(self, image: str) -> None:
        """Return when an image is on the engine.

        ImageMissing where it cannot be had, SandboxUnavailable while it is being pulled, or others are.
        """
        failed_s, failure = self._failed.get(image, (0.0, None))
        if failure is not None and self._clock() - failed_s < _FAILURE_KEPT_S:
            raise failure
        pull = self._pulls.get(image)
        if pull is None:
            if len(self._pulls) >= _AT_ONCE:
                raise SandboxUnavailable(
                    f"image {image!r} is waiting for {_AT_ONCE} other images to be pulled: try again later"
                )
            pull = self._pulls[image] = self._begin(image)
        await asyncio.wait({pull.end}, timeout=self._wait_s)
        if not pull.end.done():
            since_s = self._clock() - pull.began_s
            raise SandboxUnavailable(f"image {image!r} is being pulled ({since_s:.0f} s so far): try again later")
        failure = pull.end.result()
        if failure is not None:
            raise failure

    async def has(self, image: str) -> bool:
        try:
            await self._requests.ask(inspect_image, image)
        except ImageMissing:
            return False
        return True

    def close(self) -> None:
        """Let go of the engine; does not wait for a pull under way, which ends with its next progress message."""
        self._closed.set()
        self._requests.close()

    def _begin(self, image: str) -> _Pull:
        loop = asyncio.get_running_loop()
        pull = _Pull(self._clock(), loop.create_future())
        log.info("pulling image %s", image)

        def work() -> None:
            failure = self._work(image, pull.began_s + self._timeout_s)
            if not loop.is_closed():
                loop.call_soon_threadsafe(self._ended, image, pull, failure)

        threading.Thread(target=work, name="airlock-pull", daemon=True).start()
        return pull

    def _ended(self, image: str, pull: _Pull, failure: SandboxError | None) -> None:
        del self._pulls[image]
        if failure is not None:
            log.warning("%s", failure)
            if len(self._failed) >= _FAILURES_LIMIT:
                self._failed.clear()
            self._failed[image] = (self._clock(), failure)
        else:
            log.info("image %s is pulled", image)
            self._failed.pop(image, None)
        pull.end.set_result(failure)

    def _work(self, image: str, until_s: float) -> SandboxError | None:

        def pull(client: Client) -> None:
            for said in client.pull(image, stream=True, decode=True):
                if self._closed.is_set():
                    raise SandboxUnavailable("the gateway is stopping")
                if self._clock() > until_s:
                    raise SandboxUnavailable(f"it takes longer than {self._timeout_s:g} s")
                if isinstance(said, dict) and said.get("error"):
                    raise SandboxUnavailable(str(said["error"]))

        try:
            self._requests.ask_here(pull)
        except EngineUnavailable as error:
            # The engine has gone, or says nothing for as long as it waits for a registry.
            return _missing(image, "no answer in time") if "timed out" in str(error).lower() else error
        except SandboxError as error:
            return _missing(image, str(error))
        except Exception as error:
            return _missing(image, repr(error))
        return None


@dataclass(frozen=True)
class PullingCreation:
    """Satisfies Creator; create() has a missing image pulled."""

    inner: Creator
    pulls: ImagePulls

    async def create(self, spec: SandboxSpec) -> Sandbox:
        try:
            return await self.inner.create(spec)
        except ImageMissing:
            if not pullable(spec.image) or await self.pulls.has(spec.image):
                raise  # it is the runtime image that is not there
        await self.pulls.pull(spec.image)
        return await self.inner.create(spec)


def pullable(image: str) -> bool:
    """Return whether an image of this name may be looked for in a registry."""
    # No registry has Airlock's own: the owner of such a name on a public one would decide what sandboxes are made of.
    return not image.startswith(("airlock-", "sha256:"))


def _missing(image: str, why: str) -> ImageMissing:
    return ImageMissing(
        f"image {image!r} is not on the engine, and pulling it failed: {why[:500]}. Correct its name in "
        "the policy's sandbox section, or load it into the engine (docker pull, docker load)"
    )
