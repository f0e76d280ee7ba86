"""What an operator gets wrong: each gives one clear error, and nothing is lost."""

from __future__ import annotations

import json
from pathlib import Path

from tests.docker_state import containers_of
from tests.gateway_process import airlock, airlock_process, make_home, served


def test_a_bad_policy_is_refused_with_file_line_and_field(tmp_path: Path) -> None:
    home = make_home(tmp_path / "home")
    policy = home.config.parent / "policies" / "default.yaml"
    policy.write_text("version: 1\nrules:\n  - id: a\n    tools: [execute]\n    efect: allow\n    reason: x\n")
    checked = airlock("policy", "check", str(policy), "--json", check=False)
    answer = json.loads(checked.stdout)
    assert not answer["ok"]
    assert any(error["line"] and "efect" in error["field"] for error in answer["errors"]), answer
    refused = airlock_process("serve", "--config", str(home.config), "--listen", "127.0.0.1:0", check=False)
    assert refused.returncode == 2
    assert "default.yaml" in refused.stderr
    assert "efect" in refused.stderr


def test_the_starter_policy_checks_out(tmp_path: Path) -> None:
    home = make_home(tmp_path / "home")
    checked = airlock("policy", "check", str(home.config.parent / "policies" / "default.yaml"), "--json")
    assert json.loads(checked.stdout) == {"ok": True, "errors": []}


def test_a_missing_engine_is_reported_with_how_to_fix_it(tmp_path: Path) -> None:
    home = make_home(tmp_path / "home")
    home.configure(sandbox={"engine_url": f"unix://{tmp_path}/no.sock"})
    refused = airlock_process("serve", "--config", str(home.config), "--listen", "127.0.0.1:0", check=False)
    assert refused.returncode == 2
    assert "Docker" in refused.stderr
    assert "Traceback" not in refused.stderr


def test_an_unknown_field_in_the_configuration_is_named(tmp_path: Path) -> None:
    home = make_home(tmp_path / "home")
    home.configure(sandboxes={"idle": 1})
    refused = airlock_process("serve", "--config", str(home.config), check=False)
    assert refused.returncode == 2
    assert "sandboxes" in refused.stderr


def test_init_does_not_overwrite(tmp_path: Path) -> None:
    home = make_home(tmp_path / "home")
    again = airlock("init", str(home.config.parent), "--json", check=False)
    assert again.returncode == 2
    assert "error" in json.loads(again.stdout)


def test_a_key_is_stored_hashed(tmp_path: Path) -> None:
    home = make_home(tmp_path / "home")
    state = home.config.parent / "state"
    assert all(home.key.encode() not in file.read_bytes() for file in state.iterdir() if file.is_file())


def test_a_second_gateway_on_the_same_state_is_refused_and_harms_nothing(tmp_path: Path) -> None:
    home = make_home(tmp_path / "home")
    with served(home) as gateway:
        env = {"AIRLOCK_ADDRESS": gateway.address, "AIRLOCK_API_KEY": home.key}
        airlock("tool", "call", "execute", '{"command": "true"}', env=env)
        sandboxes = containers_of(home.instance)
        ready = home.config.parent / "ready"
        second = airlock_process(
            "serve", "--config", str(home.config), "--listen", "127.0.0.1:0", "--ready-file", str(ready), check=False
        )
        assert second.returncode == 2
        assert "in use by another gateway" in second.stderr
        assert containers_of(home.instance) == sandboxes
        assert ready.read_text() == gateway.address


def test_explain_says_what_a_real_call_would_return(tmp_path: Path) -> None:
    home = make_home(tmp_path / "home")
    policy = home.config.parent / "policies" / "default.yaml"
    calls = [
        ("read_file", '{"path": "a"}'),
        ("ls", "{}"),
        ("grep", '{"pattern": "x"}'),
        ("read_file", '{"path": "../etc/passwd"}'),
        ("execute", '{"command": "true"}'),
        ("nothing", "{}"),
    ]
    with served(home) as gateway:
        env = {"AIRLOCK_ADDRESS": gateway.address, "AIRLOCK_API_KEY": home.key}
        for tool, arguments in calls:
            said = json.loads(
                airlock("policy", "explain", str(policy), "--tool", tool, "--args", arguments, "--json").stdout
            )
            real = json.loads(airlock("tool", "call", tool, arguments, "--json", env=env).stdout)
            reported = ("verdict", "rule", "reason")
            assert {name: said[name] for name in reported} == {name: real[name] for name in reported}


def test_a_key_with_a_line_end_is_one_clear_error() -> None:
    refused = airlock("tool", "list", "--key", "alk_x\n", check=False)
    assert refused.returncode == 3
    assert "line end" in refused.stderr
    assert "Traceback" not in refused.stderr
