"""`airlock init`: a starter configuration, policy and keys."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gateway.cli.terminal import EXIT_USAGE, Json, fail, out, print_json

if TYPE_CHECKING:
    from gateway.config.config import Config

_TENANT = "default"
_CONFIG = """\
# Airlock's configuration. Paths are relative to this file. `airlock serve --config airlock.yaml` starts the gateway.
state_dir: state

tenants:
  default:
    policy: policies/default.yaml

# Any OpenAI-compatible endpoint. Unset fields come from OPENAI_BASE_URL and AIRLOCK_MODEL.
model:
  api_key_env: OPENAI_API_KEY

# What `airlock run --agent NAME` can name. Without this there is "default", with files and a shell. Agents of one
# tenant alone stand under tenants.NAME.agents.
# agents:
#   default:
#     capabilities:
#       filesystem:
#       bash:
#       todos:
#       memory: {paths: [/workspace/AGENTS.md]}
"""


def init(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Made if it is not there.")],
    *,
    database_url: Annotated[str, typer.Option(help="postgresql://USER@HOST/NAME in place of SQLite.")] = "",
    database_password_file: Annotated[str, typer.Option(help="A file with PostgreSQL's password.")] = "",
    as_json: Json = False,
) -> None:
    """Write a starter configuration and policy, and make keys for the tenant "default"."""
    from gateway.config.config import Config
    from gateway.policy import STARTER_POLICY

    config_path = directory / "airlock.yaml"
    policy_path = directory / "policies" / f"{_TENANT}.yaml"
    if config_path.exists():
        fail(
            f"{config_path} is there already; `airlock key create --config {config_path}` makes another key",
            EXIT_USAGE,
            as_json=as_json,
        )
    try:
        policy_path.parent.mkdir(parents=True, exist_ok=True)
        policy_path.write_text(STARTER_POLICY, encoding="utf-8")
        config_path.write_text(_CONFIG + _database(database_url, database_password_file), encoding="utf-8")
    except OSError as error:
        fail(f"{error.filename}: {error.strerror}", EXIT_USAGE, as_json=as_json)
    secret, approver, operator = asyncio.run(_make_keys(Config.load(config_path)))
    if as_json:
        keys = {"key": secret, "approver_key": approver, "operator_key": operator}
        print_json({"config": str(config_path.resolve()), "tenant": _TENANT, **keys})
        return
    out.print(f"wrote {config_path}\nwrote {policy_path}")
    out.print(f"\nThe keys of tenant {_TENANT}, shown this once. For services, agents and `airlock tool`:\n")
    out.print(f"  export AIRLOCK_API_KEY={secret}\n")
    out.print(f"For people who answer what agents ask for, and for nothing else:\n\n  {approver}\n")
    out.print(f"For operators: tenants, keys, policies and the audit of all:\n\n  {operator}\n")
    out.print(f"Start the gateway with `airlock serve --config {config_path}`")


def _database(url: str, password_file: str) -> str:
    """Return what a configuration says of a database that is not SQLite; JSON's texts are YAML's."""
    given = {"database_url": url, "database_password_file": password_file}
    return "".join(f"\n{name}: {json.dumps(value)}\n" for name, value in given.items() if value)


async def _make_keys(config: Config) -> list[str]:
    """Make a key for services, one for approvers and one for operators, and return their secrets."""
    from gateway.cli.key_backend import local_keys
    from gateway.credentials.keys import ACTING_SCOPES, APPROVE, OPERATOR_SCOPES

    async with local_keys(config) as desk:
        return [
            (await desk.create_key(tenant, scopes=scopes, name=name)).secret
            for tenant, scopes, name in (
                (_TENANT, ACTING_SCOPES, "services"),
                (_TENANT, (APPROVE,), "approvers"),
                ("", OPERATOR_SCOPES, "operators"),
            )
        ]
