"""Each request that Airlock makes of an engine has a route through the proxy, and no other has."""

from __future__ import annotations

import ast
from collections.abc import Callable
from pathlib import Path
from typing import Any

import docker
import pytest
import requests

from sandbox.engine_proxy.routes import BadRequest, Head, Refused, read_head, route_of

SANDBOX = Path(__file__).parents[4] / "sandbox"
NAME = "airlock-i-sandbox-1"
DIGEST = "sha256:" + "a" * 64


class Asked(Exception):
    """The request that would have been sent."""

    def __init__(self, request: requests.PreparedRequest) -> None:
        self.request = request


class Client(docker.APIClient):
    def send(self, request: requests.PreparedRequest, **_: Any) -> requests.Response:
        raise Asked(request)


# How docker_requests.py and its like call the docker package. A new one is to be added here, and to routes.py.
CALLS: dict[str, Callable[[Any], object]] = {
    "ping": lambda c: c.ping(),
    "version": lambda c: c.version(),
    "info": lambda c: c.info(),
    "images": lambda c: c.images(),
    "inspect_image": lambda c: c.inspect_image(f"registry.example.com:5000/team/tools@{DIGEST}"),
    "pull": lambda c: list(c.pull("127.0.0.1:5000/team/tools:1", stream=True, decode=True)),
    "containers": lambda c: c.containers(all=True, filters={"label": ["airlock.kind=sandbox"]}),
    "create_container_from_config": lambda c: c.create_container_from_config({}, NAME),
    "start": lambda c: c.start(NAME),
    "stop": lambda c: c.stop(NAME, timeout=0),
    "kill": lambda c: c.kill(NAME),
    "inspect_container": lambda c: c.inspect_container(NAME),
    "stats": lambda c: c.stats(NAME, stream=False, one_shot=True),
    "remove_container": lambda c: c.remove_container(NAME, force=True, v=True),
    "wait": lambda c: c.wait(NAME, timeout=1, condition="removed"),
    "get_archive": lambda c: c.get_archive(NAME, "/opt/airlock/BUILD"),
    "put_archive": lambda c: c.put_archive(NAME, "/workspace", iter([b"x"])),
    "volumes": lambda c: c.volumes(filters={"label": ["airlock.kind=workspace"]}),
    "inspect_volume": lambda c: c.inspect_volume("airlock-i-workspace-1"),
    "create_volume": lambda c: c.create_volume("airlock-i-quota-probe", driver="local", driver_opts={"size": "1m"}),
    "remove_volume": lambda c: c.remove_volume("airlock-i-workspace-1"),
    "close": lambda c: None,
    "notice_lost_peers": lambda c: None,  # ours: it sets options of sockets
}


def head(method: str, target: str) -> Head:
    return read_head(f"{method} {target} HTTP/1.1\r\nHost: docker\r\n\r\n".encode())


def test_each_call_of_the_docker_package_has_a_route() -> None:
    called = {
        node.attr
        for file in SANDBOX.rglob("*.py")
        if "docker" in (source := file.read_text(encoding="utf-8"))
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Attribute)
        and (
            (isinstance(node.value, ast.Name) and node.value.id == "client")
            or (isinstance(node.value, ast.Attribute) and node.value.attr == "APIClient")
        )
    }
    assert "get_archive" in called
    assert called <= set(CALLS), "a call that the proxy may not know"
    client = Client(base_url="http+unix:///nowhere.sock", version="1.41")
    for call in CALLS.values():
        try:
            call(client)
        except Asked as asked:
            target = asked.request.path_url
            route_of(head(str(asked.request.method), "/" + target.split("/", 1)[1]))


@pytest.mark.parametrize(
    "method, target",
    [
        ("POST", f"/v1.41/containers/{NAME}/exec"),
        ("POST", "/v1.41/exec/1/start"),
        ("POST", f"/v1.41/containers/{NAME}/attach"),
        ("POST", f"/v1.41/containers/{NAME}/update"),
        ("POST", f"/v1.41/containers/{NAME}/rename?name=airlock-x"),
        ("GET", f"/v1.41/containers/{NAME}/export"),
        ("POST", "/v1.41/containers/create?name=postgres"),
        ("POST", "/v1.41/containers/create?platform=x"),
        ("POST", "/v1.41/containers/prune"),
        ("POST", "/v1.41/commit?container=x"),
        ("POST", "/v1.41/build"),
        ("POST", "/v1.41/build?remote=http://169.254.169.254/"),
        ("POST", "/v1.41/images/create?fromSrc=http://169.254.169.254/"),
        ("POST", "/v1.41/images/load"),
        ("DELETE", "/v1.41/images/postgres"),
        ("POST", "/v1.41/images/x/push"),
        ("DELETE", "/v1.41/volumes/state"),
        ("GET", "/v1.41/volumes/airlock-x/../state"),
        ("POST", "/v1.41/networks/create"),
        ("POST", "/v1.41/plugins/pull?remote=x"),
        ("POST", "/v1.41/swarm/init"),
        ("GET", "/v1.41/secrets"),
        ("GET", "/v1.41/events"),
        ("POST", "/grpc"),
        ("POST", "/session"),
        ("POST", "/v1.24/containers/create"),
        ("GET", "//containers/json"),
        ("GET", "/v1.41/containers/%2e%2e/json"),
        ("GET", "/v1.41/containers/a%2fexec/json"),
        ("GET", "/v1.41/images/a%0d%0ab/json"),
        ("GET", "/v1.41/info?x=1"),
        ("GET", "http://docker/info"),
    ],
)
def test_what_a_gateway_does_not_ask_for_has_none(method: str, target: str) -> None:
    with pytest.raises((Refused, BadRequest)):
        route_of(head(method, target))


@pytest.mark.parametrize(
    "data",
    [
        b"GET /info HTTP/1.1\r\nContent-Length: 1\r\ncontent-length: 2\r\n\r\n",
        b"GET /info HTTP/1.1\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"GET /info HTTP/1.1\r\nTransfer-Encoding: gzip, chunked\r\n\r\n",
        b"GET /info HTTP/1.1\r\nTransfer-Encoding : chunked\r\n\r\n",
        b"GET /info HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
        b"GET /info HTTP/1.1\r\nContent-Length: +1\r\n\r\n",
        b"GET /info HTTP/1.1\r\nA: b\r\n c\r\n\r\n",
        b"GET /info HTTP/1.1\nA: b\r\n\r\n",
        b"GET /info HTTP/1.1\r\nA: b\rHost: x\r\n\r\n",
        b"GET /info HTTP/1.1\r\nUpgrade: tcp\r\n\r\n",
        b"GET /info HTTP/1.1\r\nConnection: keep-alive, Upgrade\r\n\r\n",
        b"GET  /info HTTP/1.1\r\n\r\n",
        b"GET /info HTTP/2\r\n\r\n",
        b"\r\n\r\n",
        b"GET /info?all=1&all=2 HTTP/1.1\r\n\r\n",
    ],
)
def test_a_head_that_may_be_read_in_two_ways_is_no_request(data: bytes) -> None:
    with pytest.raises(BadRequest):
        read_head(data)
