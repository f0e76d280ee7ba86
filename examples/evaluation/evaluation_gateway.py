"""The configuration of the evaluation's gateway: its tenants and their policies, and the model."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

POLICIES = Path(__file__).parent / "policies"
TENANTS = ("default", "guarded", "restricted")


class BadModel(Exception):
    """MODEL is not a model. The text says why."""


def model_settings(model: str) -> dict[str, Any]:
    """Return the settings of a model: those in a YAML file, or its name alone. Raises BadModel.

    The file has what stands under `model:` in airlock.yaml, with or without that line.
    """
    path = Path(model)
    if path.suffix not in {".yaml", ".yml"}:
        return {"name": model}
    try:
        settings = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise BadModel(f"{model}: {error}") from error
    if isinstance(settings, dict) and set(settings) == {"model"}:
        settings = settings["model"]
    if not isinstance(settings, dict):
        raise BadModel(f"{model}: settings of a model are expected, as under `model:` of airlock.yaml")
    return settings


def configure(config_path: Path, model: Mapping[str, Any]) -> None:
    """Give the gateway the tenants with their policies, and the model."""
    config: dict[str, Any] = yaml.safe_load(config_path.read_text(encoding="utf-8"))
    config["sandbox"] = {**(config.get("sandbox") or {}), "keep_workspaces": False, "pool_limit": 0}
    config["model"] = dict(model)
    config["tenants"] = {tenant: {"policy": f"policies/{tenant}.yaml"} for tenant in TENANTS}
    config_path.write_text(yaml.safe_dump(config, sort_keys=False), encoding="utf-8")
    for tenant in TENANTS:
        shutil.copyfile(POLICIES / f"{tenant}.yaml", config_path.parent / "policies" / f"{tenant}.yaml")
