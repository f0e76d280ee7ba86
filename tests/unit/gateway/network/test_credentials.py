"""Credentials through the relay: the real value reaches the server in one header, and tool code never."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import gzip
import json
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import trustme
from pydantic import ValidationError

from gateway.config.network_settings import CredentialSettings
from gateway.errors import Misconfigured
from gateway.network.certificates import CertificateAuthority
from gateway.network.credentials import Caller, Credentials
from gateway.network.http_relay import relay_http
from gateway.network.http_request import Origin
from gateway.network.tls_server import accept_tls
from tests.unit.gateway.network.relayed import Handler, Relay, answer, echo, head, relayed, saying

_SECRET = 'real/value+of&the "token" 0123'
_API = Origin("https", "api.example", 443)
_ME = Caller("agent", "bash")


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    path = tmp_path / "secret"
    path.write_text(_SECRET + "\n")
    return path


def _settings(secret: Path, /, **more: Any) -> CredentialSettings:
    given = {"name": "api", "env": "API_TOKEN", "hosts": ["api.example"], "secret": {"file": str(secret)}} | more
    return CredentialSettings.model_validate(given)


@contextlib.asynccontextmanager
async def _bound(
    *settings: CredentialSettings, server: Handler = echo, origin: Origin | None = _API, **hosts: Handler
) -> AsyncIterator[tuple[Relay, dict[str, str]]]:
    """A relay before api.example and other.example, with these credentials; and the environment of a command."""
    credentials = Credentials(settings)
    await credentials.check()
    async with relayed(
        {"api.example": server, "other.example": server},
        origin=origin,
        exchange=lambda request: credentials.exchange(request, _ME),
    ) as relay:
        yield relay, credentials.environment(_ME)


async def _ask(
    relay: Relay, *headers: str, line: str = "GET / HTTP/1.1", host: str = "api.example"
) -> tuple[bytes, bytes]:
    reader, writer = await relay.connect()
    writer.write("\r\n".join([line, f"Host: {host}", *headers, "", ""]).encode())
    got = await answer(reader)
    writer.close()
    return got


def _recording(seen: list[bytes]) -> Handler:
    """A server that keeps heads and says nothing of them."""

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            seen.append(await reader.readuntil(b"\r\n\r\n"))
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")

    return handle


@pytest.mark.parametrize(
    "more, header, expected",
    [
        ({}, "Authorization: Bearer {}", f"Authorization: Bearer {_SECRET}"),
        ({}, "authorization: token {}", f"Authorization: Bearer {_SECRET}"),
        ({"format": "token {}"}, "Authorization: Bearer {}", f"Authorization: token {_SECRET}"),
        ({"header": "X-Api-Key", "format": "{}"}, "x-api-key: {}", f"X-Api-Key: {_SECRET}"),
        (
            {"basic_user": "x-access-token"},
            "Authorization: Basic {user:}",
            "Authorization: Basic " + base64.b64encode(f"x-access-token:{_SECRET}".encode()).decode(),
        ),
        ({"path_prefixes": ["/repos/acme", "/user"]}, "Authorization: Bearer {}", f"Authorization: Bearer {_SECRET}"),
    ],
)
async def test_the_placeholder_in_its_header_becomes_the_real_value_as_the_operator_wrote_it(
    secret: Path, more: dict[str, Any], header: str, expected: str
) -> None:
    seen: list[bytes] = []
    async with _bound(_settings(secret, **more), server=_recording(seen)) as (relay, environment):
        placeholder = environment["API_TOKEN"]
        assert _SECRET not in placeholder
        basic = base64.b64encode(f"me:{placeholder}".encode()).decode()
        await _ask(relay, header.replace("{user:}", basic).replace("{}", placeholder), line="GET /user HTTP/1.1")
        await _ask(relay, "Authorization: Bearer my-own")
        assert expected.encode() in seen[0].split(b"\r\n")
        assert placeholder.encode() not in seen[0]
        assert b"Authorization: Bearer my-own" in seen[1]
        assert b"Accept-Encoding: identity" in seen[0]


@pytest.mark.parametrize(
    "line, headers, reason",
    [
        ("GET / HTTP/1.1", ["X-Other: {}"], "belongs in the header Authorization"),
        ("GET / HTTP/1.1", ["Cookie: a={}"], "belongs in the header Authorization"),
        ("GET / HTTP/1.1", ["X-{}: 1"], "name of a header"),
        ("GET / HTTP/1.1", ["Proxy-Next: Basic {basic}", "X-Next: Basic {basic}"], "belongs in the header"),
        ("GET /{} HTTP/1.1", [], "in the URL"),
        ("GET /?a={} HTTP/1.1", [], "in the URL"),
        ("GET /?a={percent} HTTP/1.1", [], "in the URL"),
        ("GET /repos/acme HTTP/1.1", ["Authorization: Bearer {}", "Authorization: Bearer mine"], "Authorization twice"),
        ("GET /repos/acme HTTP/1.1", ["Authorization: Bearer {}", "Authorization: Bearer {}"], "twice"),
        ("GET /repos/acme HTTP/1.1", ["Authorization: Bearer {}0"], ""),
        ("GET /repos/acme HTTP/1.1", ["Authorization: Bearer {upper}"], "of no credential"),
        ("GET /repos/acme HTTP/1.1", ["Authorization: Bearer airlock_ph_" + "0" * 40], "of no credential"),
        ("GET /repos/acmeister HTTP/1.1", ["Authorization: Bearer {}"], "for /repos/acme only"),
        ("GET / HTTP/1.1", ["Authorization: Bearer {}"], "for /repos/acme only"),
        ("GET /repos/acme/../other HTTP/1.1", ["Authorization: Bearer {}"], "for /repos/acme only"),
        ("GET /repos/acme%2f..%2fother HTTP/1.1", ["Authorization: Bearer {}"], "hides dot segments"),
        ("GET /repos/acme%2Fx HTTP/1.1", ["Authorization: Bearer {}"], ""),
    ],
)
async def test_a_placeholder_anywhere_else_is_refused_and_recorded(
    secret: Path, line: str, headers: list[str], reason: str
) -> None:
    seen: list[bytes] = []
    settings = _settings(secret, path_prefixes=["/repos/acme"])
    async with _bound(settings, server=_recording(seen)) as (relay, environment):
        placeholder = environment["API_TOKEN"]
        basic = base64.b64encode(f"{placeholder}:".encode()).decode()
        percent = "".join(f"%{byte:02x}" for byte in placeholder.encode())
        forms = {"{}": placeholder, "{basic}": basic, "{percent}": percent, "{upper}": placeholder.upper()}

        def filled(text: str) -> str:
            for name, form in forms.items():
                text = text.replace(name, form)
            return text

        start, body = await _ask(relay, *map(filled, headers), line=filled(line))
        if reason:
            assert start.startswith((b"HTTP/1.1 403 ", b"HTTP/1.1 400 "))
            assert reason in json.loads(body)["reason"]
            assert seen == []
            assert len(relay.gate.refusals) == 1
        elif "%2F" in line:
            assert start.startswith(b"HTTP/1.1 403 ")  # another server reads it as one segment, beside the prefix
        else:
            assert start.startswith(b"HTTP/1.1 200 ")  # what is around the placeholder does not get out
            assert b"Authorization: Bearer " + _SECRET.encode() + b"\r\n" in seen[0]
        assert (await _ask(relay, filled("Authorization: Bearer {}"), line="GET /repos/acme/x HTTP/1.1"))[1] == b"ok"


@pytest.mark.parametrize(
    "url, allowed",
    [
        ("http://api.example/", False),
        ("http://api.example:443/", False),
        ("http://other.example/", False),
        ("http://api.example:8080/", True),
    ],
)
async def test_a_placeholder_goes_to_no_other_host_port_or_scheme(secret: Path, url: str, allowed: bool) -> None:
    plain = _settings(secret, name="plain", env="PLAIN", hosts=["api.example:8080"], plain_http=True)
    seen: list[bytes] = []
    async with _bound(_settings(secret), plain, server=_recording(seen), origin=None) as (relay, environment):
        host = url.split("/")[2]
        start, body = await _ask(
            relay, f"Authorization: {environment['API_TOKEN']}", line=f"GET {url} HTTP/1.1", host=host
        )
        assert start.startswith(b"HTTP/1.1 403 ")
        assert json.loads(body)["rule"] == "credential api"
        assert seen == []
        start, _ = await _ask(relay, f"Authorization: {environment['PLAIN']}", line=f"GET {url} HTTP/1.1", host=host)
        assert start.startswith(b"HTTP/1.1 200 " if allowed else b"HTTP/1.1 403 ")


@pytest.mark.parametrize("cut", [0, 1, 5, 10, 20, 60])
@pytest.mark.parametrize("chunked", [False, True])
async def test_a_placeholder_in_a_body_is_refused_wherever_it_is_cut(secret: Path, cut: int, chunked: bool) -> None:
    got = bytearray()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        while b"end" not in got and (data := await reader.read(1000)):
            got.extend(data)
        if b"end" in got:
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")

    async def post(relay: Relay, body: bytes) -> bytes:
        reader, writer = await relay.connect()
        framing = b"Transfer-Encoding: chunked" if chunked else b"Content-Length: %d" % len(body)
        writer.write(b"POST / HTTP/1.1\r\nHost: api.example\r\n" + framing + b"\r\n\r\n")
        for piece in (body[:cut], body[cut:]):
            if piece:
                writer.write(b"%x\r\n%s\r\n" % (len(piece), piece) if chunked else piece)
                await asyncio.sleep(0.05)
        writer.write(b"0\r\n\r\n" if chunked else b"")
        start, _ = await answer(reader)
        writer.close()
        return start

    async with _bound(_settings(secret), server=handle) as (relay, environment):
        placeholder = environment["API_TOKEN"].encode()
        assert (await post(relay, b"ab" + placeholder + b"end")).startswith(b"HTTP/1.1 403 ")
        assert b"airlock_ph_" not in got
        assert len(relay.gate.refusals) == 1
        got.clear()
        assert (await post(relay, b"ab" + placeholder[11:] + b"end")).startswith(b"HTTP/1.1 200 ")


async def test_a_placeholder_in_a_trailer_is_refused(secret: Path) -> None:
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"0\r\n")
        await reader.readuntil(b"\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")

    async with _bound(_settings(secret), server=handle) as (relay, environment):
        for value, status in ((environment["API_TOKEN"], b"403"), ("mine", b"200")):
            reader, writer = await relay.connect()
            writer.write(b"POST / HTTP/1.1\r\nHost: api.example\r\nTransfer-Encoding: chunked\r\n\r\n")
            writer.write(b"0\r\nX-A: " + value.encode() + b"\r\n\r\n")
            assert (await head(reader)).split(b" ")[1] == status
            writer.close()


@pytest.mark.parametrize("format_", ["Bearer {}", None])
async def test_what_a_server_echoes_is_masked_and_as_long_as_it_was(secret: Path, format_: str | None) -> None:
    more = {"format": format_} if format_ else {"basic_user": "me"}
    lengths = []

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            start = await reader.readuntil(b"\r\n\r\n")
            value = next(line for line in start.split(b"\r\n") if line.startswith(b"Authorization: "))[15:]
            body = start + json.dumps({"got": value.decode()}).encode() + value.hex().encode() + base64.b64encode(start)
            lengths.append(len(body))
            writer.write(
                b"HTTP/1.1 302 Found %s\r\nLocation: http://a.example/?%s\r\nX: %s\r\nContent-Length: %d\r\n\r\n"
                % (value, value, value, len(body))
            )
            for at in range(len(body)):
                writer.write(body[at : at + 1])
                await writer.drain()
                if at % 10 == 0:
                    await asyncio.sleep(0)

    async with _bound(_settings(secret, **more), server=handle) as (relay, environment):
        got = b"".join(await _ask(relay, f"Authorization: Bearer {environment['API_TOKEN']}"))
        basic = base64.b64encode(f"me:{_SECRET}".encode())
        for form in (_SECRET.encode(), json.dumps(_SECRET)[1:-1].encode(), _SECRET.encode().hex().encode(), basic):
            assert form not in got
            assert form[3:-3] not in got
        assert base64.b64encode(_SECRET.encode())[4:20] not in got
        assert b"****" in got
        assert len(got.partition(b"\r\n\r\n")[2]) == lengths[0]
        assert b"mine" in (await _ask(relay, "Authorization: Bearer mine-alone"))[1]


async def test_it_is_masked_also_if_a_server_kept_it_and_says_it_later(secret: Path) -> None:
    kept: list[bytes] = []

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            kept.append(await reader.readuntil(b"\r\n\r\n"))
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(kept[0]), kept[0]))

    async with _bound(_settings(secret), server=handle) as (relay, environment):
        await _ask(relay, f"Authorization: Bearer {environment['API_TOKEN']}")
        secret.write_text("another value")
        _, body = await _ask(relay)
        assert _SECRET.encode() in kept[0]
        assert _SECRET.encode() not in body
        assert b"Bearer ****" in body


async def test_a_compressed_answer_is_refused_where_a_secret_could_be_in_it(secret: Path) -> None:
    packed = gzip.compress(b"a" * 100)
    given = b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: %d\r\n\r\n%s" % (len(packed), packed)
    async with _bound(_settings(secret), server=saying(given), origin=None) as (relay, _):
        other = await _ask(relay, line="GET http://other.example/ HTTP/1.1", host="other.example")
        assert other[1] == packed
    async with _bound(_settings(secret), server=saying(given)) as (relay, environment):
        start, body = await _ask(relay, f"Authorization: Bearer {environment['API_TOKEN']}", "Accept-Encoding: gzip")
        assert start.startswith(b"HTTP/1.1 502 ")
        assert b"compressed" in body


async def test_no_part_of_an_answer_is_asked_for_with_a_secret(secret: Path) -> None:
    seen: list[bytes] = []
    async with _bound(_settings(secret), server=_recording(seen)) as (relay, environment):
        await _ask(relay, f"Authorization: Bearer {environment['API_TOKEN']}", "Range: bytes=1-2")
        await _ask(relay, "Range: bytes=1-2")
        assert b"Range" not in seen[0]
        assert b"Range: bytes=1-2\r\n" in seen[1]


async def test_a_credential_may_be_for_some_tools_and_agents_only(secret: Path) -> None:
    seen: list[bytes] = []
    tool = _settings(secret, name="tool", env="TOOL", tools=["other"])
    agent = _settings(secret, name="agent", env="AGENT", agents=["other"])
    mine = _settings(secret, name="mine", env="MINE", tools=["bash"], agents=["agent"])
    credentials = Credentials([tool, agent, mine])
    assert set(credentials.environment(_ME)) == {"MINE"}
    everybodys = credentials.environment(Caller("other", "other"))
    async with relayed(
        {"api.example": _recording(seen)}, origin=_API, exchange=lambda request: credentials.exchange(request, _ME)
    ) as relay:
        for name in ("TOOL", "AGENT"):
            start, body = await _ask(relay, f"Authorization: Bearer {everybodys[name]}")
            assert start.startswith(b"HTTP/1.1 403 ")
            assert "not for this tool or agent" in json.loads(body)["reason"]
        await _ask(relay, f"Authorization: Bearer {credentials.environment(_ME)['MINE']}")
        assert len(seen) == 1


async def test_another_tenants_placeholder_is_void(secret: Path) -> None:
    seen: list[bytes] = []
    theirs = Credentials([_settings(secret)]).environment(_ME)["API_TOKEN"]
    async with _bound(_settings(secret), server=_recording(seen)) as (relay, environment):
        assert theirs != environment["API_TOKEN"]
        assert (await _ask(relay, f"Authorization: Bearer {theirs}"))[0].startswith(b"HTTP/1.1 403 ")
        assert (await _ask(relay, f"Authorization: Bearer {environment['API_TOKEN']}"))[1] == b"ok"


async def test_a_secret_that_is_gone_is_a_502_and_costs_no_other_request(secret: Path) -> None:
    async with _bound(_settings(secret), server=_recording([])) as (relay, environment):
        secret.unlink()
        assert (await _ask(relay, f"Authorization: Bearer {environment['API_TOKEN']}"))[1] == b"ok"  # for some seconds
    credentials = Credentials([_settings(secret)])
    with pytest.raises(Misconfigured, match=r"credentials\.api\.secret: .*No such file"):
        await credentials.check()
    async with relayed(
        {"api.example": _recording([])}, origin=_API, exchange=lambda request: credentials.exchange(request, _ME)
    ) as relay:
        start, body = await _ask(relay, f"Authorization: Bearer {credentials.environment(_ME)['API_TOKEN']}")
        assert start.startswith(b"HTTP/1.1 502 ")
        assert "api is not available" in json.loads(body)["reason"]
        assert (await _ask(relay))[1] == b"ok"


async def test_it_works_through_tls_that_the_gateway_opens(secret: Path, tmp_path: Path) -> None:
    issuer = trustme.CA()
    serving = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    issuer.issue_cert("api.example").configure_cert(serving)
    trusting = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    issuer.configure_trust(trusting)
    authority = CertificateAuthority(b"secret", "acme")
    credentials = Credentials([_settings(secret)])
    assert credentials.opens("api.example", 443)
    assert not credentials.opens("other.example", 443)
    seen: list[bytes] = []
    server = await asyncio.start_server(_recording(seen), "127.0.0.1", 0, ssl=serving)
    async with server, relayed({}, exchange=lambda request: credentials.exchange(request, _ME)) as relay:
        relay.gate.servers["api.example"] = server.sockets[0].getsockname()[1]
        relay.gate.tls = {"ssl": trusting, "server_hostname": "api.example"}

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            inside = await accept_tls((reader, writer), b"", authority.context("api.example"), handshake_s=20)
            await relay_http(inside, relay.gate, origin=_API)

        door = await asyncio.start_server(serve, "127.0.0.1", 0)
        async with door:
            reader, writer = await asyncio.open_connection(
                "127.0.0.1",
                door.sockets[0].getsockname()[1],
                ssl=ssl.create_default_context(cadata=authority.ca_pem),
                server_hostname="api.example",
            )
            placeholder = credentials.environment(_ME)["API_TOKEN"]
            for _ in range(2):
                writer.write(f"GET / HTTP/1.1\r\nHost: api.example\r\nAuthorization: {placeholder}\r\n\r\n".encode())
                assert (await answer(reader))[1] == b"ok"
            writer.close()
            assert len(relay.gate.dialled) == 1
            assert all(f"Authorization: Bearer {_SECRET}\r\n".encode() in one for one in seen)


@pytest.mark.parametrize(
    "more, problem",
    [
        ({"hosts": []}, "at least 1"),
        ({"hosts": ["*.example.com"]}, "without"),
        ({"hosts": ["API.example"]}, "judged as"),
        ({"path_prefixes": ["repos"]}, "a path is expected"),
        ({"path_prefixes": ["/a/../b"]}, "a path is expected"),
        ({"header": "Host"}, "is not a header's name, or one that the proxy"),
        ({"header": "X: Y"}, "is not a header's name, or one that the proxy"),
        ({"format": "Bearer"}, "one {} is expected"),
        ({"format": "a\r\nb: {}"}, "one {} is expected"),
        ({"format": "{}", "basic_user": "me"}, "either format or basic_user"),
        ({"basic_user": "a:b"}, "without ':'"),
        ({"secret": {}}, "set one of"),
        ({"secret": {"file": "a", "environment": "B"}}, "set one of"),
        ({"env": "A B"}, "pattern"),
    ],
)
def test_a_binding_that_names_no_one_place_is_refused_at_load(secret: Path, more: dict[str, Any], problem: str) -> None:
    _settings(secret)
    with pytest.raises(ValidationError, match=problem):
        _settings(secret, **more)


async def test_names_and_variables_are_used_once(secret: Path) -> None:
    await Credentials([_settings(secret), _settings(secret, name="b", env="B")]).check()
    for more in ({"name": "b"}, {"env": "B"}):
        with pytest.raises(Misconfigured, match="is a duplicate"):
            await Credentials([_settings(secret), _settings(secret, **more)]).check()


def test_a_variable_may_be_a_url(secret: Path) -> None:
    settings = _settings(secret, env="PIP_INDEX_URL", env_format="https://token:{}@api.example/simple")
    value = Credentials([settings]).environment(_ME)["PIP_INDEX_URL"]
    assert value.startswith("https://token:airlock_ph_")
    assert value.endswith("@api.example/simple")
