"""`airlock policy test`, `lint` and `diff`: proof on files alone, before a policy is anywhere near a gateway."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gateway.cli.policy_files import File, OperatorFile, compiled, read, read_operator
from gateway.cli.printable import one_line
from gateway.cli.terminal import EXIT_BAD_NEWS, EXIT_USAGE, Json, fail, out, print_json

if TYPE_CHECKING:
    from gateway.policy.difference import Change
    from gateway.policy.document import PolicyDocument
    from gateway.policy.lint import Finding


def run_tests(file: File, *, operator: OperatorFile = None, as_json: Json = False) -> None:
    """Run the examples and the tests of a file. The exit code is 1 when one of them fails."""
    from gateway.policy.proof import prove

    above = read_operator(operator, as_json=as_json)
    text = read(file, above, as_json=as_json)
    outcomes = prove(text, compiled(text.document, above))
    failed = [outcome for outcome in outcomes if not outcome.passed]
    if as_json:
        print_json({"ok": not failed, "outcomes": [asdict(outcome) for outcome in outcomes]})
    else:
        for outcome in outcomes:
            sign, style = ("ok  ", "green") if outcome.passed else ("FAIL", "bold red")
            what = f"{outcome.rule} {outcome.kind}".strip() if outcome.kind != "test" else "test"
            out.print(sign, style=style, end=" ")
            out.print(f"{file}:{outcome.line}: {what}: {one_line(outcome.call)}", markup=False)
            if outcome.message:
                out.print(f"     {one_line(outcome.message)}", style="red", markup=False)
        style = "bold red" if failed else "green"
        out.print(f"{len(outcomes) - len(failed)} of {len(outcomes)} hold", style=style, markup=False)
        if not outcomes:
            out.print("the file has no examples and no tests; both say what it is meant to do", style="yellow")
    if failed:
        raise typer.Exit(EXIT_BAD_NEWS)


def lint(
    file: File,
    *,
    operator: OperatorFile = None,
    config: Annotated[
        Path | None, typer.Option(metavar="FILE", help="airlock.yaml: look for what its agents need, too.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Look for what is probably not meant: dead rules, and rules that reach further than they read."""
    from gateway.policy.lint import lint as findings_of

    above = read_operator(operator, as_json=as_json)
    text = read(file, above, as_json=as_json)
    findings = [*_of_subagents(config, file, text.document, above, as_json=as_json)]
    findings += findings_of(text.document, text.reading, above)
    warnings = [finding for finding in findings if finding.severity == "warning"]
    if as_json:
        print_json({"ok": not warnings, "findings": [asdict(finding) for finding in findings]})
    else:
        for finding in findings:
            style = "yellow" if finding.severity == "warning" else "cyan"
            out.print(f"{file}:{finding.line}:", end=" ", markup=False)
            out.print(finding.severity, style=style, end=" ")
            out.print(f"{finding.rule + ': ' if finding.rule else ''}{one_line(finding.what, 1000)}", markup=False)
            out.print(f"    {finding.mend} [{finding.check}]", style="dim", markup=False)
        notes = len(findings) - len(warnings)
        style = "yellow" if warnings else "green"
        out.print(f"{len(warnings)} warnings, {notes} notes" if findings else "ok, nothing found", style=style)
    if warnings:
        raise typer.Exit(EXIT_BAD_NEWS)


def _of_subagents(
    config: Path | None, file: Path, document: PolicyDocument, operator: PolicyDocument | None, *, as_json: bool
) -> Iterator[Finding]:
    """Yield that no rule lets the agents of a configuration start their subagents, where that is so."""
    if config is None:
        return
    from gateway.cli.subagent_rules import MEND, agents_of_file, refuses_subagents, said
    from gateway.config.config import Config
    from gateway.errors import Misconfigured
    from gateway.policy.lint import Finding

    try:
        agents = agents_of_file(Config.load(config), file)
    except Misconfigured as error:
        fail(str(error), EXIT_USAGE, as_json=as_json)
    if agents and refuses_subagents(document, operator):
        yield Finding("subagents", "warning", "", 1, said(agents), MEND)


def diff(before: File, after: File, *, operator: OperatorFile = None, as_json: Json = False) -> None:
    """Judge the calls that two files tell of, by both. The exit code is 1 when a verdict changes."""
    from gateway.policy.difference import Tally, Verdict, text_changes
    from gateway.policy.proof import told_calls

    above = read_operator(operator, as_json=as_json)
    first, second = read(before, above, as_json=as_json).document, read(after, above, as_json=as_json).document
    one, other = compiled(first, above), compiled(second, above)
    tally = Tally()
    calls = {call.shown: call for document in (first, second) for call in told_calls(document)}
    for call in calls.values():
        old = one.judge(call.tool, call.arguments, call.facts)
        new = other.judge(call.tool, call.arguments, call.facts)
        tally.take(Verdict(old.verdict, old.rule), Verdict(new.verdict, new.rule), call.shown)
    said = list(text_changes(first, second))
    if as_json:
        print_json(
            {
                "calls": tally.calls,
                "changed": tally.changed,
                "changes": [change_as_json(change) for change in tally.changes],
                "text": [asdict(change) for change in said],
            }
        )
    else:
        print_changes(tally.changes)
        style = "yellow" if tally.changed else "green"
        out.print(f"{tally.changed} of {tally.calls} verdicts change (calls of examples and tests)", style=style)
        for change in said:
            sign = "+" if change.before is None else "-" if change.after is None else "~"
            out.print(f"{sign} {change.name}", markup=False)
            for mark, text in (("-", change.before), ("+", change.after)):
                if text and sign == "~":
                    out.print(f"    {mark} {one_line(text)}", style="red" if mark == "-" else "green", markup=False)
    if tally.changed:
        raise typer.Exit(EXIT_BAD_NEWS)


def print_changes(changes: list[Change]) -> None:
    """Print changes of verdicts with their samples."""
    for change in changes:
        calls = f"{change.calls} call{'' if change.calls == 1 else 's'}"
        direction, style = ("looser", "yellow") if change.loosens else ("stricter", "cyan")
        out.print(f"{direction:<8}", style=style, end=" ")
        out.print(f"{calls}: {one_line(change.before)} -> {one_line(change.after)}", markup=False)
        for sample in change.samples:
            out.print(f"    {one_line(sample)}", style="dim", markup=False)


def change_as_json(change: Change) -> dict[str, object]:
    """Return a change for programs."""
    return {**asdict(change), "loosens": change.loosens}
