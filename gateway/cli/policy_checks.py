"""Policy files: read as arguments of commands, and `airlock policy test, lint, diff, replay`, which check them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gateway.cli.command import CONFIG, Cli, check_tenant, moment
from gateway.cli.printable import one_line
from gateway.cli.terminal import SlowWork, fail, out

if TYPE_CHECKING:
    from gateway.config.config import Config
    from gateway.policy.document import PolicyDocument
    from gateway.policy.judge import Policy
    from gateway.policy.lint import Finding
    from gateway.policy.loading import Outcome, PolicyText
    from gateway.policy_versions.difference import Change, Tally, TextChange
    from gateway.policy_versions.replay import Replayed

File = Annotated[Path, typer.Argument(metavar="FILE", help="Policy file.")]
OperatorFile = Annotated[
    Path | None, typer.Option("--operator", metavar="FILE", help="Policy file of the operator's layer.")
]
ConfigFile = Annotated[Path, typer.Option("--config", metavar="FILE", help="Configuration file.")]
_NOT_REPLAYED = "rate limits, quotas and grants are not replayed"
SUBAGENTS_FIX = (
    "add a rule with `tools: [spawn_subagent, check_subagent, wait_subagent, cancel_subagent, list_subagents]` and "
    "`effect: allow`, or remove the subagents from the configuration"
)


def text_of(file: Path) -> str:
    """Return the text of a policy file. Raises PolicyError for what is no text."""
    from gateway.policy.loading import LIMIT_BYTES, decoded

    with file.open("rb") as opened:
        return decoded(opened.read(LIMIT_BYTES + 1), str(file))


def read(file: Path, operator: PolicyDocument | None = None) -> PolicyText:
    """Read a policy file, even if its examples fail."""
    from gateway.policy import PolicyError
    from gateway.policy.loading import read_policy

    try:
        return read_policy(text_of(file), str(file), operator)
    except PolicyError as error:
        first = error.errors[0]
        more = f" (and {len(error.errors) - 1} more)" if len(error.errors) > 1 else ""
        fail(f"{file} does not load: line {first.line}: {first.text}{more}; see `airlock policy check {file}`")


def read_operator(file: Path | None) -> PolicyDocument | None:
    """Read the operator's layer if there is a file."""
    return None if file is None else read(file).document


def compiled(document: PolicyDocument, operator: PolicyDocument | None) -> Policy:
    """Return the policy that both layers form."""
    from gateway.policy.judge import Policy

    return Policy(document, operator)


async def stored_layers(config: Config, *layers: str) -> dict[str, PolicyDocument]:
    """Return the policies in force in a configuration's database, by layer."""
    from gateway.cli.database import local_database, opened_policies
    from gateway.policy_versions.policies import stored_document

    async with local_database(config) as database, opened_policies(database) as policies:
        changes = {layer: policies.change_in_force(layer) for layer in layers}
        texts = {layer: await policies.store.text(change.digest) for layer, change in changes.items() if change}
    return {layer: stored_document(text) for layer, text in texts.items()}


def run_tests(cli: Cli, file: File, *, operator: OperatorFile = None) -> None:
    """Run the examples and tests of a policy file. Exits with 1 if one fails."""
    outcomes = read(file, read_operator(operator)).outcomes
    failed = [outcome for outcome in outcomes if not outcome.passed]
    document = {"ok": not failed, "outcomes": outcomes}
    cli.show(document, lambda _: _print_outcomes(file, outcomes), bad_news=bool(failed))


def lint(
    cli: Cli,
    file: File,
    *,
    operator: OperatorFile = None,
    config: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Configuration file; also check what its agents need.")
    ] = None,
) -> None:
    """Warn about likely mistakes: rules that never decide, and rules that match more than they seem to."""
    from gateway.policy.lint import lint as findings_of

    above = read_operator(operator)
    text = read(file, above)
    findings = list(_of_subagents(config, file, text.document, above))
    findings += findings_of(text.document, text.reading, above)
    warnings = [finding for finding in findings if finding.severity == "warning"]
    document = {"ok": not warnings, "findings": findings}
    cli.show(document, lambda _: _print_findings(file, findings), bad_news=bool(warnings))


def _print_outcomes(file: Path, outcomes: Sequence[Outcome]) -> None:
    for outcome in outcomes:
        sign, style = ("ok  ", "green") if outcome.passed else ("FAIL", "bold red")
        what = f"{outcome.rule} {outcome.kind}".strip() if outcome.kind != "test" else "test"
        out.print(sign, style=style, end=" ")
        out.print(f"{file}:{outcome.line}: {what}: {one_line(outcome.call)}")
        if outcome.message:
            out.print(f"     {one_line(outcome.message)}", style="red")
    passed = sum(outcome.passed for outcome in outcomes)
    out.print(f"{passed} of {len(outcomes)} passed", style="green" if passed == len(outcomes) else "bold red")
    if not outcomes:
        out.print("the file has no examples or tests; add some to document its intent", style="yellow")


def _print_findings(file: Path, findings: Sequence[Finding]) -> None:
    for finding in findings:
        out.print(f"{file}:{finding.line}:", end=" ")
        out.print(finding.severity, style="yellow" if finding.severity == "warning" else "cyan", end=" ")
        out.print(f"{finding.rule + ': ' if finding.rule else ''}{one_line(finding.what, 1000)}")
        out.print(f"    {finding.fix} [{finding.check}]", style="dim")
    warnings = sum(finding.severity == "warning" for finding in findings)
    said = f"{warnings} warnings, {len(findings) - warnings} notes" if findings else "ok, no findings"
    out.print(said, style="yellow" if warnings else "green")


def _of_subagents(
    config: Path | None, file: Path, document: PolicyDocument, operator: PolicyDocument | None
) -> Iterator[Finding]:
    """Yield a warning if no rule lets the agents of a configuration start their subagents."""
    if config is None:
        return
    from gateway.config.config import Config
    from gateway.policy.lint import Finding

    loaded = Config.load(config)
    files = {name: tenant.policy_file for name, tenant in loaded.tenants.items()}
    own = [name for name, path in files.items() if path and loaded.path(path).resolve() == file.resolve()]
    # A file that no tenant uses is judged for the agents of all tenants.
    if problem := subagents_problem(loaded, own or loaded.tenants, document, operator):
        yield Finding("subagents", "warning", "", 1, problem, SUBAGENTS_FIX)


def subagents_problem(
    config: Config, tenants: Iterable[str], document: PolicyDocument, operator: PolicyDocument | None
) -> str:
    """Return why the agents of tenants cannot start their subagents; empty unless a policy always denies it."""
    from gateway.policy.lint.findings import at_its_loosest

    of_tenants = [config.agents_of(tenant).items() for tenant in tenants]
    agents = sorted({name for one in of_tenants for name, agent in one if agent.capabilities.subagents is not None})
    if not agents:
        return ""
    policy = compiled(at_its_loosest(document), None if operator is None else at_its_loosest(operator))
    if policy.judge("spawn_subagent", {}).verdict != "deny":
        return ""
    who = f"agent {agents[0]} has" if len(agents) == 1 else f"agents {', '.join(agents)} have"
    return f"{who} subagents, but no rule allows spawn_subagent, so every start is denied"


def diff(cli: Cli, before: File, after: File, *, operator: OperatorFile = None) -> None:
    """Compare the verdicts of two policies on the calls in their examples and tests. Exits with 1 if one changes."""
    from gateway.policy_versions.difference import Tally, Verdict, example_calls, text_changes

    above = read_operator(operator)
    first, second = read(before, above).document, read(after, above).document
    one, other = compiled(first, above), compiled(second, above)
    tally = Tally()
    calls = {call.shown: call for document in (first, second) for call in example_calls(document)}
    for call in calls.values():
        old = one.judge(call.tool, call.arguments, call.facts)
        new = other.judge(call.tool, call.arguments, call.facts)
        tally.take(Verdict(old.verdict, old.rule), Verdict(new.verdict, new.rule), call.shown)
    text = list(text_changes(first, second))
    cli.show(
        {**_tally_as_json(tally), "text": text}, lambda _: _print_difference(tally, text), bad_news=tally.changed > 0
    )


def _print_difference(tally: Tally, text: Sequence[TextChange]) -> None:
    _print_changes(tally.changes)
    style = "yellow" if tally.changed else "green"
    out.print(f"{tally.changed} of {tally.calls} verdicts change (calls of examples and tests)", style=style)
    for change in text:
        sign = "+" if change.before is None else "-" if change.after is None else "~"
        out.print(f"{sign} {change.name}")
        for mark, said in (("-", change.before), ("+", change.after)):
            if said and sign == "~":
                out.print(f"    {mark} {one_line(said)}", style="red" if mark == "-" else "green")


def _print_changes(changes: list[Change]) -> None:
    for change in changes:
        calls = f"{change.calls} call{'' if change.calls == 1 else 's'}"
        direction, style = ("looser", "yellow") if change.loosens else ("stricter", "cyan")
        out.print(f"{direction:<8}", style=style, end=" ")
        out.print(f"{calls}: {one_line(change.before)} -> {one_line(change.after)}")
        for sample in change.samples:
            out.print(f"    {one_line(sample)}", style="dim")


def _change_as_json(change: Change) -> dict[str, object]:
    return {**asdict(change), "loosens": change.loosens}


def _tally_as_json(tally: Tally) -> dict[str, object]:
    changes = [_change_as_json(change) for change in tally.changes]
    return {"calls": tally.calls, "changed": tally.changed, "changes": changes}


async def replay(
    cli: Cli,
    candidate: Annotated[Path, typer.Argument(metavar="CANDIDATE", help="Policy file to evaluate.")],
    *,
    since_: Annotated[str, typer.Option("--since", help="Start of the period: 30m, 12h, 7d, 2w or a date.")] = "7d",
    tenant: Annotated[str | None, typer.Option(help="Tenant whose calls to replay; default: all tenants.")] = None,
    config: ConfigFile = CONFIG,
    operator: OperatorFile = None,
) -> None:
    """Show which verdicts on recorded calls a candidate would change. Exits with 1 if one changes.

    The operator's layer is the one in force, unless --operator names a file.
    """
    from gateway.config.config import Config
    from gateway.storage.policy_store import OPERATOR

    start = moment(since_, datetime.now(UTC))
    above = read_operator(operator)
    document = read(candidate, above).document
    settings = Config.load(config)
    if tenant is not None:
        check_tenant(settings, tenant)
    above = above or (await stored_layers(settings, OPERATOR)).get(OPERATOR)
    replayed = await _replay(compiled(document, above), settings, start, tenant)
    cli.show(_replayed_as_json(replayed), lambda _: _print_replayed(replayed), bad_news=replayed.tally.changed > 0)


async def _replay(candidate: Policy, config: Config, start: datetime, tenant: str | None) -> Replayed:
    from gateway.cli.database import local_database
    from gateway.policy_versions.replay import replay as replayed_over
    from gateway.storage.call_journal import recorded_calls

    async with local_database(config) as database:
        with SlowWork("reading the journal") as slow:
            recorded = recorded_calls(database, int(start.timestamp() * 1e6), tenant)
            return await replayed_over(candidate, recorded, lambda calls: slow.at(f"{calls:,} calls judged"))


def _replayed_as_json(replayed: Replayed) -> dict[str, object]:
    return {
        **_tally_as_json(replayed.tally),
        "shadow": [_change_as_json(change) for change in replayed.shadow.changes],
        "not_judged": dict(replayed.skipped),
        "note": _NOT_REPLAYED,
    }


def _print_replayed(replayed: Replayed) -> None:
    tally = replayed.tally
    _print_changes(tally.changes)
    out.print(f"{tally.changed} of {tally.calls} verdicts change", style="yellow" if tally.changed else "green")
    if replayed.shadow.changed:
        out.print("\nalso, with the shadow rules enforced", style="bold")
        _print_changes(replayed.shadow.changes)
    for why, calls in replayed.skipped.most_common():
        out.print(f"{calls} not judged: {why}", style="dim")
    out.print(_NOT_REPLAYED, style="dim")
