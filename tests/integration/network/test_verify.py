"""`airlock network verify` and `log`, from inside real sandboxes, and from inside this machine, which has a network."""

from __future__ import annotations

import ast
import asyncio
import json
import threading
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from gateway.cli import network_probe
from gateway.client import Client
from tests.gateway_process import Home, airlock, make_home, served
from tests.integration.gateway.test_forward import forwarding
from tests.integration.network.test_docker_door import runtimes
from tests.integration.network.test_door import NO_DOCKER, Site

TENANT = """\
version: 1
enforcement: {enforcement}
sandbox: {{runtime: {runtime}}}
rules:
  - {{id: all-files, tools: [read, write], paths: [/**], effect: allow, reason: Any file.}}
  - {{id: commands, tools: [execute], {argv}effect: allow, reason: Commands run.}}
  - {{id: site, tools: [connect], hosts: ["127.0.0.1:{port}"], effect: allow, reason: The tests' own server.}}
"""
OPERATOR = """\
version: 1
rules:
  - {{id: loopback, tools: [connect], hosts: ["127.0.0.1:{port}"], effect: allow, reason: The tests' own server.}}
"""
ALONE = """\
version: 1
rules:
  - {id: commands, tools: [execute], effect: allow, reason: Commands run.}
"""
DIRECT = ("routes", "TCP to the host", "UDP", "another tenant's forward")


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Site)
    server.seen = []  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server.server_address[1]
    server.shutdown()
    thread.join()
    server.server_close()


@dataclass(frozen=True)
class Verified:
    """A gateway whose tenants are `default`, and `strict`, whose commands may not be python3."""

    home: Home
    address: str
    port: int
    keys: dict[str, str]

    def verify(self, *arguments: str, tenant: str = "default") -> tuple[int, dict[str, Any]]:
        gateway = ("--address", self.address, "--key", self.keys[tenant])
        ended = airlock("network", "verify", *arguments, *gateway, "--json", check=False)
        return ended.returncode, json.loads(ended.stdout)


def gateway(
    directory: Path, port: int, engine: str, *, alone: bool = False, runtime: str = "runc"
) -> Iterator[Verified]:
    home = make_home(directory)
    home.configure(sandbox={"engine": engine, **({} if engine == "memory" else {"keep_workspaces": False})})
    keys = {"default": home.key}
    enforcement = "kernel" if runtime == "runc" else "reading"  # gVisor has no Landlock
    tenant = partial(TENANT.format, port=port, runtime=runtime, enforcement=enforcement)
    if alone:
        (directory / "policies" / "default.yaml").write_text(ALONE)
    else:
        home.configure(operator_policy="policies/operator.yaml")
        (directory / "policies" / "operator.yaml").write_text(OPERATOR.format(port=port))
        (directory / "policies" / "default.yaml").write_text(tenant(argv=""))
        keys["strict"] = home.add_tenant("strict", tenant(argv="argv: [[ls]], "))
        keys["other"] = home.add_tenant("other", tenant(argv=""))
    with served(home, NO_DOCKER if engine == "memory" else {}) as running:
        yield Verified(home, running.address, port, keys)


@pytest.fixture(scope="module")
def memory(tmp_path_factory: pytest.TempPathFactory, port: int) -> Iterator[Verified]:
    yield from gateway(tmp_path_factory.mktemp("n"), port, "memory")


@pytest.fixture(scope="module", params=["runc", "runsc"])
def docker(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, port: int) -> Iterator[Verified]:
    if request.param == "runsc" and "runsc" not in runtimes():
        pytest.skip("this engine has no runtime runsc: docs/deployment.md says how to register it")
    yield from gateway(tmp_path_factory.mktemp("n"), port, "docker", runtime=request.param)


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory, port: int) -> Iterator[Verified]:
    yield from gateway(tmp_path_factory.mktemp("n"), port, "docker", alone=True)


def failed(answer: dict[str, Any]) -> list[dict[str, Any]]:
    return [one for one in answer["checks"] if not one["ok"]]


def found(answer: dict[str, Any]) -> dict[str, tuple[bool, str]]:
    return {one["name"]: (one["ok"], one["got"]) for one in answer["checks"]}


def test_a_sandbox_reaches_what_its_policy_names_and_nothing_else(docker: Verified) -> None:
    code, answer = docker.verify("--thread", "t", "--reach", f"127.0.0.1:{docker.port}")
    assert (code, failed(answer)) == (0, [])
    checks = found(answer)
    assert {*DIRECT, "raw sockets", "DNS", "TCP over IPv6", "proxy: loopback"} < set(checks)
    assert checks["proxy variables"][1].startswith("all set: http://127.0.0.1:")
    assert checks[f"reach 127.0.0.1:{docker.port}"] == (True, "200")


def test_what_is_not_reached_is_reported_with_its_refusal_and_exits_with_1(docker: Verified) -> None:
    code, answer = docker.verify("--reach", f"127.0.0.1:{docker.port}", "--reach", "pypi.org:443")
    assert (code, answer["ok"]) == (1, False)
    checks = found(answer)
    assert checks[f"reach 127.0.0.1:{docker.port}"][0]
    assert checks["reach pypi.org:443"][1].startswith("403 policy_denied by rule default-deny: ")
    assert [name for name, (ok, _) in checks.items() if not ok] == ["reach pypi.org:443"]


async def test_what_another_tenant_has_forwarded_is_not_reached(docker: Verified) -> None:
    def fetched(address: str) -> str:
        with urllib.request.urlopen(f"http://{address}/", timeout=30) as answer:
            return str(answer.read(), "utf-8")

    async with Client(docker.address, docker.keys["other"]) as other:
        server = await other.start_process(["python3", "-um", "http.server", "8000", "--bind", "127.0.0.1"], thread="o")
        async for piece in other.process_output("o", server.id, follow=True):
            if b"Serving" in piece.data:
                break
        async with forwarding(docker.address, docker.keys["other"], "o", 8000, "--json") as (_, said):
            address = json.loads(said)["listening"]
            assert "Directory listing" in await asyncio.to_thread(fetched, address)
            reach = ("--reach", address, "--reach", address.replace("127.0.0.1", "localhost"))
            code, answer = await asyncio.to_thread(docker.verify, *reach)
    checks = found(answer)
    assert (code, checks["another tenant's forward"]) == (1, (True, "no way"))
    for target in reach[1::2]:
        assert checks[f"reach {target}"][1].startswith("403 policy_denied by rule default-deny: ")


def test_a_sandbox_whose_policy_names_no_host_has_no_proxy(alone: Verified) -> None:
    code, answer = alone.verify()
    assert (code, failed(answer)) == (0, [])
    assert found(answer)["proxy variables"][1].startswith("none is set")
    code, answer = alone.verify("--reach", "pypi.org:443")
    assert (code, found(answer)["reach pypi.org:443"]) == (1, (False, "there is no proxy"))


def test_a_machine_with_a_network_is_found_out(memory: Verified) -> None:
    code, answer = memory.verify("--reach", f"127.0.0.1:{memory.port}")
    assert (code, answer["ok"]) == (1, False)
    checks = found(answer)
    assert [name for name in DIRECT if checks[name][0]] == []
    through = {name: ok for name, (ok, _) in checks.items() if name.startswith(("proxy", "reach"))}
    assert set(through.values()) == {True}, checks
    assert len(through) == 6


def test_a_policy_that_does_not_let_python_run_gets_that_answer(memory: Verified) -> None:
    code, answer = memory.verify(tenant="strict")
    assert code == 3
    assert "verify runs `python3 -`" in answer["error"]


def test_a_person_gets_a_table(memory: Verified) -> None:
    ended = airlock("network", "verify", "--address", memory.address, "--key", memory.home.key, check=False)
    assert ended.returncode == 1
    assert ended.stdout.splitlines()[0].split() == ["ok", "check", "expected", "got"]
    assert "✗   UDP" in ended.stdout


def test_what_verify_tried_is_in_the_log(memory: Verified) -> None:
    memory.verify("--thread", "logged", "--reach", f"127.0.0.1:{memory.port}")
    audit = memory.home.make_key("default", "audit")
    log = ("network", "log", "--thread", "logged", "--address", memory.address, "--key", audit, "--json")

    def listed(*arguments: str) -> list[dict[str, Any]]:
        return [json.loads(line) for line in airlock(*log, *arguments).stdout.splitlines()]

    everything, denied = listed(), listed("--denied")
    assert [one for one in everything if one["verdict"] == "deny"] == denied
    (allowed,) = listed("--host", "127.0.0.1", "--limit", "1")
    assert (allowed["port"], allowed["rule"], allowed["address"]) == (memory.port, "operator/loopback", "127.0.0.1")
    assert [one["port"] for one in listed("--host", "*.invalid")] == [80, 443]


@pytest.mark.parametrize("target", ["pypi.org", "https://pypi.org", "pypi.org:x", ""])
def test_what_is_to_be_reached_is_a_host_with_a_port(target: str) -> None:
    ended = airlock("network", "verify", "--reach", target, "--key", "alk_x", "--json", check=False)
    assert (ended.returncode, "HOST:PORT" in json.loads(ended.stdout)["error"]) == (2, True)


def test_the_probe_is_python_3_8() -> None:
    text = Path(network_probe.__file__).read_text(encoding="utf-8")
    ast.parse(text, feature_version=(3, 8))
    assert "removeprefix" not in text
    assert "removesuffix" not in text
