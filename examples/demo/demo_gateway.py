"""A gateway for the demo: examples/own_gateway.py with the demo's policies, agent and model."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from examples.own_gateway import OwnGateway, own_gateway

POLICY = Path(__file__).parent / "policy.yaml"
OPERATOR_POLICY = Path(__file__).parent / "operator.yaml"
AGENTS = Path(__file__).parent / "agents.yaml"
# Where the policies say that the package index listens.
_INDEX_PORT = 8181


@asynccontextmanager
async def demo_gateway(scripted_base_url: str | None, investigator: str, index_port: int) -> AsyncIterator[OwnGateway]:
    """Run a gateway until the block ends.

    With a URL, the model is the scripted one and `investigator` its subagent's; else the environment names the model.
    The policy is about the package index at `index_port`.
    """
    configure = partial(
        _configure, scripted_base_url=scripted_base_url, investigator=investigator, index_port=index_port
    )
    async with own_gateway("demo", configure, environment={"AIRLOCK_DEMO_MODEL_KEY": "scripted"}) as gateway:
        yield gateway


def _configure(config_path: Path, *, scripted_base_url: str | None, investigator: str, index_port: int) -> None:
    """Give the tenant the demo's policy and the gateway the demo's agent and model."""
    policies = config_path.parent / "policies"
    config: dict[str, Any] = yaml.safe_load(config_path.read_text(encoding="utf-8"))
    config["sandbox"] = {**(config.get("sandbox") or {}), "keep_workspaces": False}
    config["operator_policy"] = str(policies / OPERATOR_POLICY.name)
    config["agents"] = yaml.safe_load(AGENTS.read_text(encoding="utf-8"))
    if scripted_base_url is not None:
        model = {"base_url": scripted_base_url, "name": "scripted", "api_key_env": "AIRLOCK_DEMO_MODEL_KEY"}
        config["model"] = model
        subagents = config["agents"]["default"]["capabilities"]["subagents"]["definitions"]
        subagents["investigator"]["model"] = {**model, "name": investigator}
    config_path.write_text(yaml.safe_dump(config, sort_keys=False), encoding="utf-8")
    for source, target in (
        (POLICY, config["tenants"]["default"]["policy"]),
        (OPERATOR_POLICY, config["operator_policy"]),
    ):
        text = source.read_text(encoding="utf-8").replace(f":{_INDEX_PORT}", f":{index_port}")
        (config_path.parent / target).write_text(text, encoding="utf-8")
