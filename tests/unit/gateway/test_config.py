"""The configuration file: paths, what comes from the environment, and what is wrong with it."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.config import Config
from gateway.errors import Misconfigured

GOOD = "tenants:\n  default:\n    policy: policies/default.yaml\n"


def _write(directory: Path, text: str) -> Path:
    path = directory / "airlock.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def test_paths_are_relative_to_the_file(tmp_path: Path) -> None:
    config = Config.load(_write(tmp_path, GOOD))
    assert config.path(config.tenants["default"].policy) == tmp_path / "policies" / "default.yaml"
    assert config.resolved_database_url() == f"sqlite:///{tmp_path}/state/airlock.db"


@pytest.mark.parametrize(
    "text, named",
    [
        ("", "mapping"),
        ("tenants: {}\n", "tenants"),
        (GOOD + "sandboxes: {}\n", "sandboxes"),
        ("tenants:\n  Not/AName:\n    policy: x\n", "tenants"),
        (GOOD + "sandbox: {max_live: 0}\n", "max_live"),
        ("a: [", "not YAML"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, text: str, named: str) -> None:
    with pytest.raises(Misconfigured, match=named):
        Config.load(_write(tmp_path, text))


def test_a_missing_file_says_how_to_make_one(tmp_path: Path) -> None:
    with pytest.raises(Misconfigured, match="airlock init"):
        Config.load(tmp_path / "nothing.yaml")


def test_a_missing_model_key_names_the_variable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    config = Config.load(_write(tmp_path, GOOD))
    with pytest.raises(Misconfigured, match="OPENAI_API_KEY"):
        config.model_of("default").resolved_api_key()


def test_a_tenant_may_have_a_model_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRLOCK_MODEL", "from-environment")
    text = GOOD + "  rich:\n    policy: p.yaml\n    model: {name: better, base_url: http://x}\n"
    config = Config.load(_write(tmp_path, text))
    assert config.model_of("rich").resolved_name() == "better"
    assert config.model_of("default").resolved_name() == "from-environment"
