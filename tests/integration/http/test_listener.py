"""The HTTP listener: whom it serves, what a request may cost, and how it stops."""

from __future__ import annotations

import contextlib
import socket
import ssl
import time
from pathlib import Path

import httpx2 as httpx
import pytest

from gateway.cli.init import make_starter
from gateway.config.config import Config
from gateway.errors import Misconfigured
from gateway.http.connections import CONNECTIONS_OF_A_HOST, HEAD_LIMIT_BYTES
from tests.gateway_process import airlock_process, make_home, served
from tests.integration.http.conftest import Listening, listening
from tests.postgres import PostgresServer
from tests.unit.gateway.identity.test_tls import Authority
from tests.waiting import eventually

# On a machine where another gateway may serve.
_SERVE = ("serve", "--listen", "127.0.0.1:0")


def answer_to(host: tuple[str, int], request: bytes, wait_s: float = 30) -> bytes:
    """Send bytes on a connection of its own, and return everything until the gateway closes it."""
    with socket.create_connection(host, wait_s) as connection:
        connection.sendall(request)
        parts = []
        while part := connection.recv(65_536):
            parts.append(part)
        return b"".join(parts)


def test_health_needs_no_credential_and_names_the_version(gateway: Listening) -> None:
    answer = httpx.get(f"{gateway.url}/healthz")
    assert answer.status_code == 200
    assert answer.json()["status"] == "SERVING"
    assert answer.json()["version"]


def test_a_gateway_whose_database_is_down_lives_and_is_not_healthy(
    tmp_path: Path, postgres_server: PostgresServer
) -> None:
    home = make_home(tmp_path)
    with postgres_server.database() as url:
        home.store_in(url)
        home.configure(sandbox={"engine": "memory"})
        with listening(home) as serving:
            postgres_server.stop()
            try:
                assert eventually(lambda: httpx.get(f"{serving.url}/healthz").status_code == 503, 30)
                assert httpx.get(f"{serving.url}/livez").status_code == 200
            finally:
                postgres_server.start()
            assert eventually(lambda: httpx.get(f"{serving.url}/healthz").status_code == 200, 30)


def test_an_unknown_path_and_a_wrong_method_are_problem_documents(gateway: Listening) -> None:
    for answer, status in ((httpx.get(f"{gateway.url}/none"), 404), (httpx.delete(f"{gateway.url}/healthz"), 405)):
        assert answer.status_code == status
        assert answer.headers["content-type"] == "application/problem+json"
        assert answer.json()["status"] == status


@pytest.mark.parametrize("host_header", ["evil.example", "127.0.0.1.evil.example", "evil.example:80", "", "[::2]"])
def test_another_host_than_this_machine_is_not_served_on_loopback(gateway: Listening, host_header: str) -> None:
    answer = httpx.get(f"{gateway.url}/healthz", headers={"host": host_header})
    assert answer.status_code == 421
    assert "http.hosts" in answer.json()["detail"]


def test_names_below_localhost_are_this_machine(gateway: Listening) -> None:
    name = f"app.localhost:{gateway.http.rpartition(':')[2]}"
    assert httpx.get(f"{gateway.url}/healthz", headers={"host": name}).status_code == 200


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "https://127.0.0.1", "http://127.0.0.1:1"])
def test_a_page_of_another_origin_may_send_no_requests(gateway: Listening, origin: str) -> None:
    answer = httpx.get(f"{gateway.url}/healthz", headers={"origin": origin})
    assert answer.status_code == 403
    assert "http.origins" in answer.json()["detail"]


def test_a_page_of_the_gateway_itself_may(gateway: Listening) -> None:
    assert httpx.get(f"{gateway.url}/healthz", headers={"origin": gateway.url}).status_code == 200
    assert httpx.get(f"{gateway.url}/healthz", headers={"host": "localhost"}).status_code == 200


def test_what_is_no_http_is_refused(host: tuple[str, int]) -> None:
    assert answer_to(host, b"\x16\x03\x01\x02\x00\x01").startswith(b"HTTP/1.1 400")
    assert answer_to(host, b"hello\r\n\r\n").startswith(b"HTTP/1.1 400")


def test_a_head_that_is_too_large_ends_the_connection(host: tuple[str, int]) -> None:
    line = b"x-filler: " + b"x" * 1000 + b"\r\n"
    answer = answer_to(host, b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n" + line * (HEAD_LIMIT_BYTES // 1000 + 2))
    assert answer.startswith(b"HTTP/1.1 431")


def test_a_head_that_does_not_arrive_ends_the_connection(host: tuple[str, int]) -> None:
    began = time.monotonic()
    with socket.create_connection(host, 90) as connection:
        connection.sendall(b"GET /healthz HTTP/1.1\r\n")
        assert connection.recv(1) == b""
    assert time.monotonic() - began > 5


def test_one_address_does_not_take_all_connections(gateway: Listening, host: tuple[str, int]) -> None:
    opened = []
    try:
        opened += [socket.create_connection(host, 30) for _ in range(CONNECTIONS_OF_A_HOST)]
        assert answer_to(host, b"").startswith(b"HTTP/1.1 503")
    finally:
        for connection in opened:
            connection.close()
    deadline = time.monotonic() + 30
    while True:
        try:
            assert httpx.get(f"{gateway.url}/healthz").status_code == 200
            return
        except (AssertionError, httpx.TransportError):
            if time.monotonic() > deadline:
                raise


def test_few_requests_may_be_sent_ahead_and_no_flood_of_them(host: tuple[str, int]) -> None:
    request = b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n"
    few = answer_to(host, (request + b"\r\n") * 7 + request + b"connection: close\r\n\r\n")
    assert few.count(b"HTTP/1.1 200") == 8
    with contextlib.suppress(ConnectionResetError):
        assert answer_to(host, (request + b"\r\n") * 1000).count(b"HTTP/1.1 200") < 1000


def test_a_path_is_served_as_it_is_written(gateway: Listening) -> None:
    assert httpx.get(f"{gateway.url}/healthz/", headers={"host": "localhost"}).status_code == 404


def test_requests_one_after_another_share_a_connection(gateway: Listening) -> None:
    with httpx.Client(base_url=gateway.url) as client:
        for _ in range(3):
            assert client.get("/healthz").status_code == 200


async def test_the_starter_configuration_listens_on_loopback(tmp_path: Path) -> None:
    starter = await make_starter(tmp_path)
    assert Config.load(starter.config).http.listen == "127.0.0.1:7480"


def test_with_a_free_port_for_grpc_the_configured_listener_takes_a_free_one_too(tmp_path: Path) -> None:
    home = make_home(tmp_path)
    ready = tmp_path / "http-ready"
    with socket.create_server(("127.0.0.1", 0)) as taken:
        home.configure(sandbox={"engine": "memory"}, http={"listen": f"127.0.0.1:{taken.getsockname()[1]}"})
        with served(home, None, "--http-ready-file", str(ready)):
            assert httpx.get(f"http://{ready.read_text(encoding='utf-8')}/healthz").status_code == 200


@pytest.mark.parametrize("address", ["127.0.0.1", "7480", "127.0.0.1:none", "127.0.0.1:99999", "192.0.2.1:7480"])
def test_an_address_that_cannot_be_used_is_named_with_its_option(tmp_path: Path, address: str) -> None:
    home = make_home(tmp_path)
    home.configure(sandbox={"engine": "memory"})
    done = airlock_process(*_SERVE, "--config", str(home.config), "--http", address, check=False)
    assert done.returncode != 0
    assert f"--http {address}" in done.stderr.replace("'", "").replace("\n", " ")


def test_plain_text_beyond_loopback_is_refused(tmp_path: Path) -> None:
    home = make_home(tmp_path)
    done = airlock_process(*_SERVE, "--config", str(home.config), "--http", "0.0.0.0:0", check=False)
    assert done.returncode != 0
    assert "--http 0.0.0.0:0 is reachable from other machines" in " ".join(done.stderr.split())


def test_an_origin_with_a_path_is_no_origin(tmp_path: Path) -> None:
    home = make_home(tmp_path)
    home.configure(http={"origins": ["https://app.example/"]})
    with pytest.raises(Misconfigured, match=r"http\.origins.*such as https://app\.example"):
        Config.load(home.config)


def test_tls_is_that_of_grpc_and_follows_its_files(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    certificate, key = authority.issue("gateway", "localhost")
    home = make_home(tmp_path / "home")
    home.configure(sandbox={"engine": "memory"}, tls={"certificate": str(certificate), "key": str(key)})
    with listening(home) as serving:
        url = f"https://localhost:{serving.http.rpartition(':')[2]}"
        trusting = ssl.create_default_context(cafile=authority.path)
        assert httpx.get(f"{url}/healthz", verify=trusting).status_code == 200
        first = _serial(url, trusting)
        authority.issue("gateway", "localhost")
        assert _serial(url, trusting) != first
        # A handshake that does not begin counts as a connection.
        address, port = serving.http.rpartition(":")[::2]
        opened = [socket.create_connection((address, int(port)), 30) for _ in range(CONNECTIONS_OF_A_HOST)]
        with pytest.raises(httpx.TransportError):
            httpx.get(f"{url}/healthz", verify=trusting)
        for connection in opened:
            connection.close()


def _serial(url: str, context: ssl.SSLContext) -> object:
    host, _, port = url.removeprefix("https://").rpartition(":")
    with (
        socket.create_connection((host, int(port)), 30) as connection,
        context.wrap_socket(connection, server_hostname=host) as secured,
    ):
        return (secured.getpeercert() or {}).get("serialNumber")


def test_workers_share_the_port(tmp_path: Path) -> None:
    home = make_home(tmp_path)
    with listening(home, "--workers", "2") as serving:
        for _ in range(8):
            assert httpx.get(f"{serving.url}/healthz").status_code == 200
