"""One gateway with an HTTP listener, whose sandboxes are local processes: what is tested here is the listener."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Coroutine, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import httpx2 as httpx
import pytest

from agent.models.scripted_model_server import ScriptedModelServer, Turn
from tests.gateway_process import Home, make_home, served


@dataclass(frozen=True)
class Listening:
    """A served gateway with its two addresses, and the keys of its two tenants."""

    home: Home
    address: str
    http: str
    other_key: str

    @property
    def url(self) -> str:
        return f"http://{self.http}"

    @property
    def key(self) -> str:
        return self.home.key

    def client(self, key: str | None = None, **options: Any) -> httpx.AsyncClient:
        """Return a client with a tenant's key."""
        headers = {} if key == "" else {"authorization": f"Bearer {self.key if key is None else key}"}
        return httpx.AsyncClient(base_url=self.url, headers=headers, timeout=60, **options)


@contextlib.contextmanager
def listening(home: Home, *options: str, env: Mapping[str, str] | None = None) -> Iterator[Listening]:
    """Serve a home with an HTTP listener."""
    other_key = home.add_tenant("other")
    ready = home.config.parent / "http-ready"
    with served(home, env, "--http", "127.0.0.1:0", "--http-ready-file", str(ready), *options) as gateway:
        yield Listening(home, gateway.address, ready.read_text(encoding="utf-8"), other_key)
    assert not ready.exists()


@contextlib.contextmanager
def _model() -> Iterator[str]:
    """Serve a model that answers every task in one turn, in a thread; yield its address."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    server = ScriptedModelServer([Turn("done")] * 100)

    def wait_for(coroutine: Coroutine[Any, Any, Any]) -> None:
        asyncio.run_coroutine_threadsafe(coroutine, loop).result(30)

    wait_for(server.__aenter__())
    try:
        yield server.base_url
    finally:
        wait_for(server.__aexit__())
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


@pytest.fixture(scope="session")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Listening]:
    home = make_home(tmp_path_factory.mktemp("http"))
    with _model() as url:
        home.configure(sandbox={"engine": "memory"}, model={"base_url": url, "name": "scripted"})
        with listening(home, env={"OPENAI_API_KEY": "test"}) as serving:
            yield serving


@pytest.fixture
def host(gateway: Listening) -> tuple[str, int]:
    name, _, port = gateway.http.rpartition(":")
    return name, int(port)
