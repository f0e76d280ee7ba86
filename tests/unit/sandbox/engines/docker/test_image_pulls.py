"""Images that are not on the engine: pulled once for all, within bounds, and what failed is reported and remembered."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from typing import Any, cast

import pytest

from sandbox.engines.docker.docker_requests import DockerRequests
from sandbox.engines.docker.image_pulls import ImagePulls, PullingCreation
from sandbox.engines.engine import Creator
from sandbox.errors import EngineUnavailable, ImageMissing, SandboxUnavailable
from sandbox.sandbox import Sandbox, SandboxSpec


class FakeRequests:
    """An engine whose pulls wait until they are let go; `lines` is what it says then."""

    def __init__(self) -> None:
        self.pulled: list[str] = []
        self.let_go = threading.Event()
        self.lines: list[dict[str, str]] = [{"status": "done"}]
        self.failure: Exception | None = None
        self.here: set[str] = set()

    def ask_here(self, request: Callable[..., None], *args: Any) -> None:
        request(self, *args)

    def pull(self, image: str, **_: bool) -> list[dict[str, str]]:
        self.pulled.append(image)
        assert self.let_go.wait(30)
        if self.failure is not None:
            raise self.failure
        if not any("error" in line for line in self.lines):
            self.here.add(image)
        return self.lines

    async def ask(self, request: Callable[..., object], image: str) -> None:
        if image not in self.here:
            raise ImageMissing(image)

    def close(self) -> None:
        self.let_go.set()


class FakeEngine:
    def __init__(self, requests: FakeRequests) -> None:
        self.requests = requests

    async def create(self, spec: SandboxSpec) -> Sandbox:
        if spec.image not in self.requests.here:
            raise ImageMissing(f"image {spec.image!r} is not on the engine")
        return cast(Sandbox, spec.image)


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
async def requests() -> AsyncIterator[FakeRequests]:
    made = FakeRequests()
    yield made
    made.let_go.set()


def pulls(requests: FakeRequests, *, wait_s: float = 30.0, clock: Callable[[], float] = lambda: 0.0) -> ImagePulls:
    return ImagePulls(cast(DockerRequests, requests), wait_s=wait_s, timeout_s=60.0, clock=clock)


def engine(requests: FakeRequests, **options: Any) -> Creator:
    return PullingCreation(cast(Creator, FakeEngine(requests)), pulls(requests, **options))


def spec(image: str, thread: str = "t") -> SandboxSpec:
    return SandboxSpec("tenant", thread, image)


async def test_an_image_is_pulled_once_for_all_who_ask_and_then_used(requests: FakeRequests) -> None:
    on = engine(requests)
    asked = [asyncio.ensure_future(on.create(spec("x:1", thread))) for thread in "abc"]
    requests.let_go.set()
    assert await asyncio.gather(*asked) == ["x:1"] * 3
    assert requests.pulled == ["x:1"]


async def test_a_call_waits_a_little_and_the_pull_goes_on_behind_it(requests: FakeRequests) -> None:
    on = engine(requests, wait_s=0.01)
    for _ in range(2):
        with pytest.raises(SandboxUnavailable, match=r"'x:1' is being pulled \(0 s so far\): try again later"):
            await on.create(spec("x:1"))
    requests.let_go.set()
    async with asyncio.timeout(30):
        while "x:1" not in requests.here:
            await asyncio.sleep(0)
    assert await on.create(spec("x:1")) == "x:1"
    assert requests.pulled == ["x:1"]


async def test_what_failed_is_reported_and_not_tried_again_for_a_while(requests: FakeRequests) -> None:
    clock = Clock()
    requests.let_go.set()
    requests.failure = SandboxUnavailable("the Docker engine refused the request: no route to host")
    on = engine(requests, clock=clock)
    for _ in range(3):
        with pytest.raises(ImageMissing, match=r"'x:1' is not on the engine.*no route to host.*docker load"):
            await on.create(spec("x:1"))
    assert requests.pulled == ["x:1"]
    clock.now_s, requests.failure = 31.0, None
    assert await on.create(spec("x:1")) == "x:1"


@pytest.mark.parametrize(
    "lines, failure, reported",
    [
        ([{"status": "a"}, {"error": "manifest unknown"}], None, "manifest unknown"),
        ([], EngineUnavailable("Read timed out"), "no answer in time"),
    ],
)
async def test_a_registry_that_says_no_or_nothing_is_an_image_that_is_missing(
    requests: FakeRequests, lines: list[dict[str, str]], failure: Exception | None, reported: str
) -> None:
    requests.let_go.set()
    requests.lines, requests.failure = lines, failure
    with pytest.raises(ImageMissing, match=reported):
        await engine(requests).create(spec("x:1"))


async def test_an_engine_that_is_gone_is_reported_as_that(requests: FakeRequests) -> None:
    requests.let_go.set()
    requests.failure = EngineUnavailable("does not answer")
    with pytest.raises(EngineUnavailable):
        await engine(requests).create(spec("x:1"))


async def test_a_pull_that_drips_ends_with_its_time(requests: FakeRequests) -> None:
    clock = Clock()
    on = engine(requests, clock=clock)
    asked = asyncio.ensure_future(on.create(spec("x:1")))
    async with asyncio.timeout(30):
        while not requests.pulled:
            await asyncio.sleep(0)
    clock.now_s = 61.0
    requests.let_go.set()
    with pytest.raises(ImageMissing, match="longer than 60 s"):
        await asked


async def test_many_images_at_once_are_not_pulled_at_once(requests: FakeRequests) -> None:
    on = engine(requests, wait_s=0.01)
    reported = await asyncio.gather(*(on.create(spec(f"x:{n}")) for n in range(4)), return_exceptions=True)
    assert sum("waiting for 2 other images" in str(one) for one in reported) == 2
    assert len(requests.pulled) == 2


@pytest.mark.parametrize("image", ["airlock-sandbox", "sha256:" + "a" * 64])
async def test_airlock_s_own_images_and_ids_are_looked_for_in_no_registry(requests: FakeRequests, image: str) -> None:
    requests.let_go.set()
    with pytest.raises(ImageMissing):
        await engine(requests).create(spec(image))
    assert requests.pulled == []


async def test_an_image_that_is_there_is_not_pulled_for_the_runtime_s_that_is_not(requests: FakeRequests) -> None:
    class WithoutRuntime(FakeEngine):
        async def create(self, spec: SandboxSpec) -> Sandbox:
            raise ImageMissing("the runtime image is not on the engine", "airlock-runtime")

    requests.here.add("x:1")
    requests.let_go.set()
    with pytest.raises(ImageMissing, match="runtime image"):
        await PullingCreation(cast(Creator, WithoutRuntime(requests)), pulls(requests)).create(spec("x:1"))
    assert requests.pulled == []
