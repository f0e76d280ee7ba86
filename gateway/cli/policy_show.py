"""`airlock policy show`: the effective policy of a tenant, layer by layer."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from gateway.cli.backend import check_tenant
from gateway.cli.command import Cli
from gateway.cli.policy_files import (
    DEFAULT_CONFIG,
    ConfigFile,
    OperatorFile,
    compiled,
    read,
    read_operator,
    stored_layers,
)
from gateway.cli.printable import one_line
from gateway.cli.rows import Cell, Rows
from gateway.cli.terminal import fail, out

if TYPE_CHECKING:
    from gateway.policy.document import PolicyDocument
    from gateway.policy.resolved import Resolved
    from gateway.policy.scoped_rule import ScopedRule


async def show(
    cli: Cli,
    file: Annotated[Path | None, typer.Argument(metavar="[FILE]", help="Policy file; or use --tenant.")] = None,
    *,
    operator: OperatorFile = None,
    tenant: Annotated[str | None, typer.Option(help="Show the policy in force for this tenant.")] = None,
    config: ConfigFile = DEFAULT_CONFIG,
    resolved: Annotated[
        bool, typer.Option("--resolved/--own", help="Show both layers together, or only the tenant's.")
    ] = True,
) -> None:
    """Show the effective policy: every rule with its layer and group, every setting with its source."""
    from gateway.policy.resolved import resolve

    if (file is None) == (tenant is None):
        fail("give either a policy file or --tenant NAME")
    if file is not None:
        above = read_operator(operator)
        own = read(file, above).document
    else:
        own, above = await _in_force(config, tenant or "")
        above = read_operator(operator) or above
    above = above if resolved else None
    found = resolve(compiled(own, above), own, above)
    cli.show(_as_json(found), lambda _: _print(found))


async def _in_force(config_path: Path, tenant: str) -> tuple[PolicyDocument, PolicyDocument | None]:
    """Return both layers in force for a tenant, from the database or else the configuration's files."""
    from gateway.config.config import Config
    from gateway.storage.policy_store import OPERATOR

    config = Config.load(config_path)
    check_tenant(config, tenant)
    found = await stored_layers(config, OPERATOR, tenant)
    above = found.get(OPERATOR)
    if tenant in found:
        return found[tenant], above
    # No gateway has started yet; the first one will apply the file.
    file = config.tenants[tenant].policy_file
    if file is None:
        fail(f"tenant {tenant} has no policy: run `airlock policy apply FILE --tenant {tenant}`")
    return read(config.path(file), above).document, above


def _as_json(found: Resolved) -> dict[str, Any]:
    return {
        "version": found.version,
        "rules": [
            {
                "rule": placed.name,
                "layer": placed.layer,
                "group": placed.group,
                "enforced_by": found.enforced_by(placed),
                **placed.rule.model_dump(mode="json", exclude={"id", "examples"}, exclude_defaults=True),
            }
            for placed in found.rules
        ],
        "settings": {setting.name: {"value": setting.value, "who": setting.who} for setting in found.settings},
    }


def _print(found: Resolved) -> None:
    out.print(f"{found.version}\n", style="bold")
    rules: list[tuple[Cell, ...]] = []
    for placed in found.rules:
        style = {"allow": "green", "ask": "yellow", "deny": "red"}[placed.rule.effect]
        shadow = " (shadow)" if placed.rule.mode == "shadow" else ""
        source = placed.layer + (f", group {placed.group}" if placed.group else "")
        effect = Text(f"{placed.rule.effect}{shadow}", style)
        rules.append((effect, placed.name, source, found.enforced_by(placed), _about(placed)))
    out.print(Rows(("effect", "rule", "from", "enforced by", "about"), rules))
    settings: list[tuple[Cell, ...]] = []
    for setting in found.settings:
        value = "unset" if setting.value is None else one_line(setting.value)
        style = "dim" if setting.who == "default" else ""
        settings.append(tuple(Text(cell, style) for cell in (setting.name, setting.who, value)))
    out.print()
    out.print(Rows(("setting", "source", "value"), settings))
    out.print("\nCalls that no rule allows are denied; the strictest matching rule wins.", style="dim")


def _fields(fields: dict[str, Any]) -> str:
    return " ".join(f"{name} {' '.join(item) if isinstance(item, list) else item}" for name, item in fields.items())


def _about(placed: ScopedRule) -> str:
    from gateway.policy.cover import shown_argv

    rule = placed.rule
    said = [" ".join(rule.tools)]
    said += [] if rule.paths is None else [f"paths {' '.join(rule.paths)}"]
    said += [] if rule.argv is None else [f"argv {'; '.join(map(shown_argv, rule.argv))}"]
    said += [] if rule.hosts is None else [f"hosts {' '.join(rule.hosts)}"]
    for name in ("size_bytes", "time", "rate"):
        value = getattr(rule, name)
        if value is not None:
            said.append(f"{name} {_fields(value.model_dump(mode='json', exclude_none=True))}")
    said += [] if rule.when is None else [f"when {rule.when}"]
    said += [] if rule.at_once is None else [f"at once {rule.at_once}"]
    said += [] if rule.unless is None else [f"unless {rule.unless.model_dump_json(exclude_none=True)}"]
    return one_line("; ".join(said), 1000)
