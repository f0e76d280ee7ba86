"""`airlock policy`: check, explain, show, test and apply policies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from gateway.cli import policy_checks, policy_life
from gateway.cli.command import CONFIG, Cli, Commands, check_tenant, json_object
from gateway.cli.policy_checks import (
    ConfigFile,
    File,
    OperatorFile,
    compiled,
    read,
    read_operator,
    stored_layers,
    text_of,
)
from gateway.cli.printable import Cell, Rows, one_line
from gateway.cli.terminal import fail, out

if TYPE_CHECKING:
    from gateway.policy.decision import Decision
    from gateway.policy.document import PolicyDocument
    from gateway.policy.explain import Near
    from gateway.policy.layers import ScopedRule
    from gateway.policy.resolved import Resolved
    from gateway.policy.yaml_lines import Problem
    from sandbox.file_rules import FileRules

app = Commands(help="Check, explain, test and apply policies.")
_STYLES = {"allow": "green", "ask": "yellow", "deny": "red"}


def check(cli: Cli, file: File, *, operator: OperatorFile = None) -> None:
    """Check whether a policy file loads, and print its errors with their lines."""
    from gateway.policy import PolicyError, load_policy

    problems: list[Problem] = []
    above = read_operator(operator)
    try:
        load_policy(text_of(file), str(file), above)
    except PolicyError as error:
        problems = error.errors
    errors = [{"line": p.line, "field": p.field, "message": p.message} for p in problems]
    document = {"ok": not problems, "errors": errors}
    cli.show(document, lambda _: _print_problems(file, problems), bad_news=bool(problems))


def explain(
    cli: Cli,
    file: File,
    *,
    tool: Annotated[str, typer.Option(help="Name of the tool.")],
    args: Annotated[str, typer.Option(help="Arguments of the call, a JSON object.")] = "{}",
    operator: OperatorFile = None,
    at: Annotated[str | None, typer.Option(help="Time of the call, such as 2026-11-21T03:00; default: now.")] = None,
) -> None:
    """Show which rule decides a call, which others match, and which nearly match."""
    from agent.capabilities.filesystem import filesystem
    from agent.messages import ToolCall
    from agent.tools.toolbox import Toolbox
    from gateway.policy.decision import Facts
    from gateway.policy.explain import near_misses
    from gateway.policy.fields import moment
    from gateway.policy.resolved import resolve
    from sandbox.engines.local.local_fs import LocalFS

    above = read_operator(operator)
    # Even if its examples fail, since this command explains why.
    document = read(file, above).document
    policy = compiled(document, above)
    arguments = json_object("--args", args)
    try:
        facts = Facts(at=moment(at))
    except ValueError as error:
        fail(f"--at: {error}")
    # Judged like a real call, with the path that the tool would open.
    call = ToolCall(id="explain", name=tool, arguments=arguments)
    final = Toolbox(filesystem(LocalFS()).tools).prepare(call).call.arguments or {}
    decision = policy.judge(tool, final, facts)
    near = near_misses(policy, tool, final, facts)
    said = {"verdict": decision.verdict, "rule": decision.rule, "reason": decision.reason}
    would_be = None if decision.would_be is None else dict(zip(("verdict", "rule"), decision.would_be, strict=True))
    files = policy.file_rules if tool == "execute" else None
    resolved = resolve(policy)
    enforced = {scoped.name: resolved.enforced_by(scoped) for scoped in resolved.rules}
    trace = [{**asdict(match), "enforcement": enforced.get(match.rule)} for match in decision.trace]
    cli.show(
        {**said, "trace": trace, "near": near, "would_be": would_be, "files": files},
        lambda _: _print_decision(decision, near, files, enforced),
    )


def schema(cli: Cli) -> None:
    """Print the JSON Schema of policy files, for editors; with --json, on one line."""
    from gateway.policy.schema import policy_schema

    cli.show(policy_schema(), lambda found: out.print_json(data=found))


def _print_problems(file: Path, problems: Sequence[Problem]) -> None:
    for p in problems:
        out.print(f"{file}:{p.line}: {p.text}", style="red")
    if not problems:
        out.print("ok", style="green", end=" ")
        out.print(str(file))


def _print_decision(decision: Decision, near: list[Near], files: FileRules | None, enforced: Mapping[str, str]) -> None:
    from gateway.tool_calls.refusal_note import granted_in_words

    said = f"{decision.verdict} by {decision.rule}: {decision.reason}"
    out.print(one_line(said, 2000), style=_STYLES[decision.verdict])
    if decision.would_be is not None:
        verdict, rule = decision.would_be
        out.print(f"with the shadow rules enforced: {verdict} by {rule}", style="dim")
    if files is not None:
        forbidden = ", ".join(sorted({*files.unreadable, *files.unwritable})[:10])
        besides = f"; rules forbid or restrict what is below {forbidden}" if forbidden else ""
        out.print(one_line(f"the kernel lets its commands {granted_in_words(files)}{besides}", 2000))
    if decision.trace:
        out.print("\nmatched", style="bold")
    for match in decision.trace:
        shadow = " (shadow)" if match.shadow else ""
        out.print(f"  {match.effect:<5}", style=_STYLES[match.effect], end=" ")
        out.print(f"{match.rule}{shadow}: {one_line(match.part)}", end=" ")
        out.print(f"({enforced.get(match.rule, 'granted')})", style="dim")
    if near:
        out.print("\nnearly matched", style="bold")
    for miss in near:
        out.print(f"  {miss.effect:<5} {miss.rule}: {one_line(miss.part)}")
        out.print(f"        {miss.condition}: {one_line(miss.why)}", style="dim")


async def show(
    cli: Cli,
    file: Annotated[Path | None, typer.Argument(metavar="[FILE]", help="Policy file; or use --tenant.")] = None,
    *,
    operator: OperatorFile = None,
    tenant: Annotated[str | None, typer.Option(help="Show the policy in force for this tenant.")] = None,
    config: ConfigFile = CONFIG,
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
    found = resolve(compiled(own, above))
    cli.show(_resolved_as_json(found), lambda _: _print_resolved(found))


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


def _resolved_as_json(found: Resolved) -> dict[str, Any]:
    rules = []
    for scoped in found.rules:
        about = {"rule": scoped.name, "layer": scoped.layer, "group": scoped.group}
        fields = scoped.rule.model_dump(mode="json", exclude={"id", "examples"}, exclude_defaults=True)
        rules.append(about | {"enforced_by": found.enforced_by(scoped)} | fields)
    settings = {setting.name: {"value": setting.value, "who": setting.who} for setting in found.settings}
    return {"version": found.version, "rules": rules, "settings": settings}


def _print_resolved(found: Resolved) -> None:
    out.print(f"{found.version}\n", style="bold")
    rules: list[tuple[Cell, ...]] = []
    for scoped in found.rules:
        style = _STYLES[scoped.rule.effect]
        shadow = " (shadow)" if scoped.rule.mode == "shadow" else ""
        source = scoped.layer + (f", group {scoped.group}" if scoped.group else "")
        effect = Text(f"{scoped.rule.effect}{shadow}", style)
        rules.append((effect, scoped.name, source, found.enforced_by(scoped), _about(scoped)))
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


def _about(scoped: ScopedRule) -> str:
    from gateway.policy.cover import shown_argv

    rule = scoped.rule
    said = [" ".join(rule.tools)]
    said += [] if rule.paths is None else [f"paths {' '.join(rule.paths)}"]
    said += [] if rule.argv is None else [f"argv {'; '.join(map(shown_argv, rule.argv))}"]
    for name in ("hosts", "methods", "url_paths"):
        if (value := getattr(rule, name)) is not None:
            said.append(f"{name} {' '.join(value)}")
    for name in ("size_bytes", "time", "rate"):
        value = getattr(rule, name)
        if value is not None:
            said.append(f"{name} {_fields(value.model_dump(mode='json', exclude_none=True))}")
    said += [] if rule.when is None else [f"when {rule.when}"]
    said += [] if rule.at_once is None else [f"at once {rule.at_once}"]
    said += [] if rule.unless is None else [f"unless {rule.unless.model_dump_json(exclude_none=True)}"]
    return one_line("; ".join(said), 1000)


app.command("test")(policy_checks.run_tests)
for one in (
    *(policy_checks.lint, show, policy_checks.diff, policy_checks.replay),
    *(policy_life.apply, policy_life.history, policy_life.rollback, policy_life.current),
    *(check, explain, schema),
):
    app.command()(one)
