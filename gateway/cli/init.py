"""`airlock init`: create a starter configuration, policy and keys."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from gateway.cli.command import Cli, user_name
from gateway.cli.terminal import fail
from gateway.credentials.keys import ACTING_SCOPES, APPROVE, OPERATOR_SCOPES

_TENANT = "default"
_CONFIG = """\
# Airlock's configuration. Paths are relative to this file. `airlock serve --config airlock.yaml` starts the gateway.
state_dir: state

tenants:
  default:
    policy: policies/default.yaml

# JSON, MCP and E2B's protocol over HTTP, for this machine alone. Remove it to serve gRPC only.
http:
  listen: 127.0.0.1:7480

# Any OpenAI-compatible endpoint. Unset fields come from OPENAI_BASE_URL and AIRLOCK_MODEL.
model:
  api_key_env: OPENAI_API_KEY

# Agents for `airlock run --agent NAME`. By default there is one, "default", with files and a shell. Agents of a single
# tenant belong under tenants.NAME.agents.
# agents:
#   default:
#     capabilities:
#       filesystem:
#       bash:
#       todos:
#       memory: {paths: [/workspace/AGENTS.md]}
"""


async def init(
    cli: Cli,
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Directory; created if it does not exist.")],
    *,
    database_url: Annotated[str, typer.Option(help="postgresql://USER@HOST/NAME instead of SQLite.")] = "",
    database_password_file: Annotated[str, typer.Option(help="File that contains the PostgreSQL password.")] = "",
) -> None:
    """Write a starter configuration and policy, and create keys for the tenant "default"."""
    config_path = directory / "airlock.yaml"
    if config_path.exists():
        fail(f"{config_path} already exists; to create another key, run `airlock key create --config {config_path}`")
    made = await make_starter(directory, database_url, database_password_file)
    keys = {"key": made.key, "approver_key": made.approver_key, "operator_key": made.operator_key}
    cli.show(
        {"config": str(made.config.resolve()), "tenant": _TENANT, **keys},
        f"wrote {made.config}\nwrote {made.policy}",
        f"\nThe keys of tenant {_TENANT}, shown only once. For services, agents and `airlock tool`:\n",
        f"  export AIRLOCK_API_KEY={made.key}\n",
        f"For approvers, and nothing else:\n\n  {made.approver_key}\n",
        f"For operators (tenants, keys, policies, all audit records):\n\n  {made.operator_key}\n",
        f"Start the gateway with `airlock serve --config {made.config}`. It needs a Docker engine and the images "
        "airlock-runtime and airlock-sandbox: `airlock doctor` checks both, `airlock images build` builds the images.",
    )


@dataclass(frozen=True)
class Starter:
    """The files and keys that `airlock init` created."""

    config: Path
    policy: Path
    key: str
    approver_key: str
    operator_key: str


async def make_starter(directory: Path, database_url: str = "", database_password_file: str = "") -> Starter:
    """Write the starter files and create the keys. Raises OSError if the directory is not writable."""
    from gateway.cli.local_admin import local_admin
    from gateway.config.config import Config
    from gateway.policy import STARTER_POLICY

    config, policy = directory / "airlock.yaml", directory / "policies" / f"{_TENANT}.yaml"
    policy.parent.mkdir(parents=True, exist_ok=True)
    policy.write_text(STARTER_POLICY, encoding="utf-8")
    given = {"database_url": database_url, "database_password_file": database_password_file}
    database = "".join(f"\n{name}: {json.dumps(value)}\n" for name, value in given.items() if value)  # JSON is YAML
    config.write_text(_CONFIG + database, encoding="utf-8")
    async with local_admin(Config.load(config), f"local:{user_name()}") as admin:
        services = await admin.create_key(_TENANT, scopes=ACTING_SCOPES, name="services")
        approvers = await admin.create_key(_TENANT, scopes=(APPROVE,), name="approvers")
        operators = await admin.create_key("", scopes=OPERATOR_SCOPES, name="operators")
    return Starter(config, policy, services.secret, approvers.secret, operators.secret)
