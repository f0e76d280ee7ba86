"""What an operator gets wrong: each gives one clear error, and nothing is lost."""

from __future__ import annotations

import json
from pathlib import Path

from tests.gateway_process import airlock, make_home


def test_a_bad_policy_is_refused_with_file_line_and_field(tmp_path: Path) -> None:
    home = make_home(tmp_path / "home")
    policy = home.config.parent / "policies" / "default.yaml"
    policy.write_text("version: 1\nrules:\n  - id: a\n    tools: [execute]\n    efect: allow\n    reason: x\n")
    checked = airlock("policy", "check", str(policy), "--json", check=False)
    answer = json.loads(checked.stdout)
    assert not answer["ok"]
    assert any(error["line"] and "efect" in error["field"] for error in answer["errors"]), answer
    refused = airlock("serve", "--config", str(home.config), "--listen", "127.0.0.1:0", check=False)
    assert refused.returncode == 2
    assert "default.yaml" in refused.stderr
    assert "efect" in refused.stderr


def test_the_starter_policy_checks_out(tmp_path: Path) -> None:
    home = make_home(tmp_path / "home")
    checked = airlock("policy", "check", str(home.config.parent / "policies" / "default.yaml"), "--json")
    assert json.loads(checked.stdout) == {"ok": True, "errors": []}


def test_a_missing_engine_is_told_with_how_to_mend_it(tmp_path: Path) -> None:
    home = make_home(tmp_path / "home")
    home.configure(sandbox={"engine_url": f"unix://{tmp_path}/no.sock"})
    refused = airlock("serve", "--config", str(home.config), "--listen", "127.0.0.1:0", check=False)
    assert refused.returncode == 2
    assert "Docker" in refused.stderr
    assert "Traceback" not in refused.stderr


def test_an_unknown_field_in_the_configuration_is_named(tmp_path: Path) -> None:
    home = make_home(tmp_path / "home")
    home.configure(sandboxes={"idle": 1})
    refused = airlock("serve", "--config", str(home.config), check=False)
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
