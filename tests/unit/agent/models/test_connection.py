"""How an endpoint is reached: keys, headers, certificates, proxies and times, over real sockets."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import socket
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import trustme

from agent.errors import ModelError, ModelUnavailable
from agent.models.model import no_deltas
from agent.models.openai_model import OpenAIModel
from agent.models.settings import Connection
from tests.unit.agent.models.asking import REQUEST, ask_at, completion
from tests.unit.agent.models.raw_endpoint import answering, serving

HI = completion({"content": "hi"})


@pytest.fixture(autouse=True)
def no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENAI_BASE_URL", "OPENAI_API_KEY"):
        monkeypatch.delenv(name, raising=False)


class Requests:
    """An endpoint that says hi, and the heads of the requests that it got."""

    def __init__(self) -> None:
        self.heads: list[str] = []
        self.base_url = ""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError):
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            self.heads.append(head)
            await answering(HI)(writer)
        writer.close()

    def field(self, name: str) -> str | None:
        lines = (line.partition(": ") for line in self.heads[-1].split("\r\n")[1:])
        return next((value for named, _, value in lines if named.lower() == name), None)


@contextlib.asynccontextmanager
async def endpoint(tls: ssl.SSLContext | None = None) -> AsyncIterator[Requests]:
    requests = Requests()
    async with await asyncio.start_server(requests.serve, "127.0.0.1", 0, ssl=tls) as server:
        scheme, port = "https" if tls else "http", server.sockets[0].getsockname()[1]
        requests.base_url = f"{scheme}://{'localhost' if tls else '127.0.0.1'}:{port}/v1"
        yield requests


async def ask(base_url: str, *, api_key: str | None = "k", **connection: Any) -> str:
    known = Connection(**{"idle_timeout_s": 20, **connection})
    return (await ask_at(base_url, api_key=api_key, stream=False, connection=known)).message.content


# --- keys ---


@pytest.mark.parametrize(
    "given, sent",
    [
        ({}, "Bearer from-env"),
        ({"api_key": "given"}, "Bearer given"),
        ({"api_key": ""}, None),
        ({"base_url": True}, None),
        ({"base_url": True, "api_key": "given"}, "Bearer given"),
    ],
)
async def test_the_key_of_the_environment_is_for_the_endpoint_of_the_environment(
    given: dict[str, Any], sent: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with endpoint() as requests:
        base_url = requests.base_url if given.pop("base_url", False) else None
        monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:1/v1" if base_url else requests.base_url)
        monkeypatch.setenv("OPENAI_API_KEY", "from-env")
        async with OpenAIModel("m", base_url=base_url, stream=False, **given) as model:
            assert (await model.infer(REQUEST, no_deltas)).message.content == "hi"
        assert requests.field("authorization") == sent


def test_openais_own_endpoint_is_not_asked_without_a_key() -> None:
    with pytest.raises(ValueError, match="set OPENAI_API_KEY"):
        OpenAIModel("m")


async def test_headers_and_query_are_sent_with_each_request() -> None:
    async with endpoint() as requests:
        headers, query = {"api-key": "s3cret", "x-title": "Airlock"}, {"api-version": "2025-04-01", "a": "b c"}
        assert await ask(f"{requests.base_url}?z=1", api_key="", headers=headers, query=query) == "hi"
        assert (requests.field("api-key"), requests.field("x-title")) == ("s3cret", "Airlock")
        path = requests.heads[-1].split(" ")[1]
        assert path.partition("?")[0] == "/v1/chat/completions"
        assert set(path.partition("?")[2].split("&")) == {"z=1", "api-version=2025-04-01", "a=b+c"}
        assert requests.field("authorization") is None


async def test_a_header_can_take_the_place_of_the_key() -> None:
    async with endpoint() as requests:
        assert await ask(requests.base_url, api_key="", headers={"Authorization": "Basic abc"}) == "hi"
        assert requests.field("authorization") == "Basic abc"


async def test_an_endpoints_error_names_the_version_of_its_api() -> None:
    body = {"error": {"message": "2025-04-01-preview is unknown"}}
    async with serving(answering(body, 400)) as raw:
        with pytest.raises(ModelError, match="2025-04-01-preview is unknown"):
            await ask(raw.base_url, query={"api-version": "2025-04-01-preview"})


async def test_what_an_endpoint_repeats_of_a_header_or_the_query_is_not_shown() -> None:
    body = {"error": {"message": "the key header-secret-1 and query-secret-1 are wrong"}}
    async with serving(answering(body, 401)) as raw:
        with pytest.raises(ModelError) as failed:
            await ask(raw.base_url, headers={"api-key": "header-secret-1"}, query={"key": "query-secret-1"})
    assert "secret-1" not in str(failed.value)


async def test_a_token_is_not_shown_without_the_scheme_that_it_was_sent_with_either() -> None:
    basic = base64.b64encode(b"user:pass-secret-1").decode()
    body = {"error": {"message": f"neither token-secret-1 nor {basic} nor padded-secret-1== is known"}}
    async with serving(answering(body, 401)) as raw:
        headers = {"X-Token": "Bearer token-secret-1", "Cookie": "session=padded-secret-1==; path=/"}
        with pytest.raises(ModelError) as failed:
            await ask(raw.base_url.replace("http://", "http://user:pass-secret-1@"), headers=headers)
    assert "secret-1" not in str(failed.value)
    assert basic not in str(failed.value)


# --- TLS ---


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
def ca_file(authority: trustme.CA, tmp_path: Path) -> str:
    path = tmp_path / "ca.pem"
    authority.cert_pem.write_to_path(str(path))
    return str(path)


def server_tls(authority: trustme.CA, *, asks_client: bool = False) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("localhost").configure_cert(context)
    if asks_client:
        authority.configure_trust(context)
        context.verify_mode = ssl.CERT_REQUIRED
    return context


async def test_a_private_authority_is_trusted_where_it_is_named(authority: trustme.CA, ca_file: str) -> None:
    async with endpoint(server_tls(authority)) as requests:
        assert await ask(requests.base_url, ca_file=ca_file) == "hi"
        with pytest.raises(ModelUnavailable, match="certificate"):
            await ask(requests.base_url)


async def test_a_client_certificate_is_shown(authority: trustme.CA, ca_file: str, tmp_path: Path) -> None:
    issued = authority.issue_cert("client@example.com")
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    for blob in issued.cert_chain_pems:
        blob.write_to_path(str(cert), append=True)
    issued.private_key_pem.write_to_path(str(key))
    async with endpoint(server_tls(authority, asks_client=True)) as requests:
        shown = {"client_cert_file": str(cert), "client_key_file": str(key)}
        assert await ask(requests.base_url, ca_file=ca_file, **shown) == "hi"
        with pytest.raises(ModelUnavailable):
            await ask(requests.base_url, ca_file=ca_file)


@pytest.mark.parametrize("setting", ["ca_file", "client_cert_file"])
@pytest.mark.parametrize("content", [None, "", "no certificate"])
def test_a_file_that_cannot_be_used_is_named(setting: str, content: str | None, tmp_path: Path) -> None:
    path = tmp_path / "file.pem"
    if content is not None:
        path.write_text(content)
    with pytest.raises(ValueError, match=f"^{setting}: {path} "):
        OpenAIModel("m", base_url="https://x.example/v1", connection=Connection(**{setting: str(path)}))


async def test_models_share_the_systems_certificates(monkeypatch: pytest.MonkeyPatch) -> None:
    reads, paths = [], ssl.get_default_verify_paths()

    def read() -> ssl.DefaultVerifyPaths:
        reads.append(paths)
        return paths

    for name in ("SSL_CERT_FILE", "SSL_CERT_DIR"):  # with these, the system's paths are not looked up
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(ssl, "get_default_verify_paths", read)
    for _ in range(3):
        await OpenAIModel("m", base_url="https://models.test/v1", api_key="k").close()
    assert len(reads) <= 1


# --- proxies and times ---


async def test_a_proxy_is_asked_for_the_endpoint() -> None:
    async with endpoint() as proxy:
        at = proxy.base_url.removesuffix("/v1").replace("http://", "http://user:pass@")
        assert await ask("http://models.example/v1", proxy=at) == "hi"
        assert proxy.heads[-1].startswith("POST http://models.example/v1/chat/completions ")
        assert proxy.field("proxy-authorization") is not None


async def test_the_environments_proxy_is_not_asked_for_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    async with endpoint() as requests:
        assert await ask(requests.base_url) == "hi"


async def test_an_endpoint_that_takes_no_connection_names_the_setting_that_bounds_it() -> None:
    with socket.socket() as listener, contextlib.ExitStack() as waiting:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        for _ in range(4):  # fill its queue: the kernel drops what comes then
            filler = waiting.enter_context(socket.socket())
            filler.setblocking(False)
            filler.connect_ex(listener.getsockname())
        base_url = f"http://127.0.0.1:{listener.getsockname()[1]}/v1"
        with pytest.raises(
            ModelUnavailable, match=r"accept a connection within 0\.3 s; .* connect_timeout_s$"
        ) as raised:
            await ask(base_url, connect_timeout_s=0.3)
        assert raised.value.usage is None  # nothing was sent
