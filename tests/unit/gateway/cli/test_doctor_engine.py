"""Which engine `airlock doctor` looks at, and when it looks at none."""

from __future__ import annotations

import json
from pathlib import Path

from typer.testing import CliRunner

from gateway.cli.main import app


def _found(*options: str) -> dict[str, dict[str, str]]:
    ended = CliRunner().invoke(app, ["doctor", *options, "--json"])
    assert ended.exit_code == 1
    return {one["what"]: one for one in json.loads(ended.stdout)["findings"]}


def _config(directory: Path, engine: str) -> Path:
    path = directory / "airlock.yaml"
    path.write_text(f"sandbox: {{engine_url: '{engine}'}}\ntenants: {{t: {{policy: t.yaml}}}}\n", encoding="utf-8")
    return path


def test_without_a_configuration_that_loads_no_engine_is_looked_at(tmp_path: Path) -> None:
    config = tmp_path / "airlock.yaml"
    config.write_text("tenants: 1\n", encoding="utf-8")
    found = _found("--config", str(config))
    assert found["configuration"]["state"] == "failed"
    for what in ("engine", "sandbox"):
        assert (found[what]["state"], "does not load" in found[what]["detail"]) == ("warning", True)
    assert "database" not in found


def test_an_engine_that_is_named_is_looked_at_all_the_same(tmp_path: Path) -> None:
    found = _found("--config", str(tmp_path / "none.yaml"), "--engine-url", f"unix://{tmp_path}/none.sock")
    assert found["engine"]["state"] == "failed"
    assert "set another address in --engine-url" in found["engine"]["fix"]


def test_a_policy_that_does_not_load_leaves_the_configured_engine_known(tmp_path: Path) -> None:
    config = _config(tmp_path, f"unix://{tmp_path}/none.sock")
    found = _found("--config", str(config))
    assert found["configuration"]["state"] == "failed"
    assert found["engine"]["state"] == "failed"
    assert f"set another address in sandbox.engine_url of {config}" in found["engine"]["fix"]
