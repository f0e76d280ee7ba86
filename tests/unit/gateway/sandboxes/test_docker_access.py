"""What a configuration says of an engine on another machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.config.config import SandboxSettings
from gateway.errors import Misconfigured
from gateway.sandboxes.docker_access import relay_site

KEY = Path("/state/channels/authority.pem")


@pytest.fixture(autouse=True)
def _default_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DOCKER_HOST", raising=False)


def test_an_engine_on_this_machine_has_no_relays() -> None:
    for url in (None, "unix:///run/docker.sock", "tcp://127.0.0.1:2375"):
        assert relay_site(SandboxSettings(engine_url=url), KEY) is None


def test_an_engine_on_another_machine_has_them_where_its_address_says(monkeypatch: pytest.MonkeyPatch) -> None:
    found = relay_site(SandboxSettings(engine_url="tcp://10.0.0.7:2376"), KEY)
    assert found is not None
    assert (found.host, found.listen, found.authority) == ("10.0.0.7", "10.0.0.7", KEY)
    monkeypatch.setenv("DOCKER_HOST", "tcp://10.0.0.8:2376")
    found = relay_site(SandboxSettings(), KEY)
    assert found is not None
    assert found.host == "10.0.0.8"


def test_a_tunnel_to_an_engine_needs_the_address_behind_it() -> None:
    behind = {"channel_host": "engine.example", "channel_listen": "10.0.0.7"}
    found = relay_site(SandboxSettings.model_validate({"engine_url": "tcp://127.0.0.1:2375", **behind}), KEY)
    assert found is not None
    assert (found.host, found.listen) == ("engine.example", "10.0.0.7")


def test_a_name_does_not_say_on_which_address_ports_are_published() -> None:
    with pytest.raises(Misconfigured, match=r"sandbox\.channel_listen is not set, and 'engine\.example'"):
        relay_site(SandboxSettings(engine_url="ssh://airlock@engine.example"), KEY)
