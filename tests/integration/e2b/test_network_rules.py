"""E2B's network rules: they narrow what the policy lets a sandbox connect to, and widen nothing."""

from __future__ import annotations

from collections.abc import Iterator
from http.server import ThreadingHTTPServer

import pytest
from e2b import Sandbox, SandboxException

from tests.gateway_process import make_home
from tests.integration.e2b.conftest import Connection, connection_of
from tests.integration.http.conftest import listening
from tests.integration.network.test_door import OPERATOR, TENANT, site

__all__ = ["site"]
# By the proxy, although the server is on this machine.
_FETCH = (
    "import http.client, os; c = http.client.HTTPConnection(os.environ['http_proxy'][7:]); "
    "c.request('GET', 'http://localhost:{0}/x'); a = c.getresponse(); print(a.status, a.read().decode())"
)
_ALL = "0.0.0.0/0"


@pytest.fixture(scope="module")
def narrow(site: ThreadingHTTPServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Connection, str]]:
    """A gateway whose policy lets sandboxes connect to one server, and a command that does."""
    home, port = make_home(tmp_path_factory.mktemp("narrow")), site.server_address[1]
    home.configure(sandbox={"engine": "memory"}, operator_policy="operator.yaml")
    (home.config.parent / "operator.yaml").write_text(OPERATOR.format(port=port), encoding="utf-8")
    (home.config.parent / "policies" / "default.yaml").write_text(TENANT.format(port=port), encoding="utf-8")
    with listening(home) as gateway:
        yield connection_of(gateway, gateway.key), f'python3 -c "{_FETCH.format(port)}"'


def _reaches(sandbox: Sandbox, command: str) -> bool:
    said = sandbox.commands.run(command).stdout
    assert said.startswith(("200 you asked for /x", "403 "))
    return said.startswith("200")


@pytest.mark.parametrize(
    "options, reaches",
    [
        ({}, True),
        ({"allow_internet_access": True}, True),
        ({"allow_internet_access": False}, False),
        ({"network": {"deny_out": [_ALL]}}, False),
        ({"network": {"deny_out": [_ALL], "allow_out": ["localhost", "127.0.0.1"]}}, True),
        ({"network": {"deny_out": [_ALL], "allow_out": [_ALL]}}, True),
        ({"network": {"deny_out": ["127.0.0.0/8"]}}, False),
        ({"network": {"deny_out": ["8.8.8.8"]}}, True),
    ],
)
def test_rules_of_a_sandbox_hold(narrow: tuple[Connection, str], options: dict[str, object], reaches: bool) -> None:
    connection, fetch = narrow
    with Sandbox.create(**options, **connection) as sandbox:
        assert _reaches(sandbox, fetch) is reaches


def test_rules_are_replaced_while_a_sandbox_runs(narrow: tuple[Connection, str]) -> None:
    connection, fetch = narrow
    with Sandbox.create(**connection) as sandbox:
        assert _reaches(sandbox, fetch)
        sandbox.update_network({"deny_out": [_ALL]})
        assert not _reaches(sandbox, fetch)
        with pytest.raises(SandboxException, match=r"network\.allowOut: example\.com: no rule"):
            sandbox.update_network({"allow_out": ["example.com"]})
        assert not _reaches(sandbox, fetch)
        sandbox.update_network({})
        assert _reaches(sandbox, fetch)
