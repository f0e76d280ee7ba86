"""`airlock policy`: check, explain, test and apply policies."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gateway.cli import policy_life, policy_proof, policy_replay, policy_show
from gateway.cli.command import Cli, Commands, json_object
from gateway.cli.policy_files import File, OperatorFile, compiled, read, read_operator, readable
from gateway.cli.printable import one_line
from gateway.cli.terminal import EXIT_BAD_NEWS, fail, out

if TYPE_CHECKING:
    from gateway.policy import Decision, PolicyProblem
    from gateway.policy.explain import Near
    from sandbox.file_rules import FileRules

app = Commands(help="Check, explain, test and apply policies.")
app.command("test")(policy_proof.run_tests)
app.command("lint")(policy_proof.lint)
app.command("show")(policy_show.show)
app.command("diff")(policy_proof.diff)
app.command("replay")(policy_replay.replay)
policy_life.register(app)
_STYLES = {"allow": "green", "ask": "yellow", "deny": "red"}


@app.command()
def check(cli: Cli, file: File, *, operator: OperatorFile = None) -> None:
    """Check whether a policy file loads, and print its errors with their lines."""
    from gateway.policy import check_policy_file

    readable(file)
    problems = check_policy_file(file, read_operator(operator))
    errors = [{"line": p.line, "field": p.field, "message": p.message} for p in problems]
    cli.show({"ok": not problems, "errors": errors}, lambda _: _print_problems(file, problems))
    if problems:
        raise typer.Exit(EXIT_BAD_NEWS)


@app.command()
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
    from gateway.policy.policy_tests import moment
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
    near = near_misses(document, above, tool, final, facts)
    said = {"verdict": decision.verdict, "rule": decision.rule, "reason": decision.reason}
    would_be = None if decision.would_be is None else dict(zip(("verdict", "rule"), decision.would_be, strict=True))
    files = policy.file_rules if tool == "execute" else None
    cli.show(
        {**said, "trace": decision.trace, "near": near, "would_be": would_be, "files": files},
        lambda _: _print(decision, near, files),
    )


@app.command()
def schema(cli: Cli) -> None:
    """Print the JSON Schema of policy files, for editors; with --json, on one line."""
    from gateway.policy.schema import policy_schema

    cli.show(policy_schema(), lambda found: out.print_json(data=found))


def _print_problems(file: Path, problems: Sequence[PolicyProblem]) -> None:
    for p in problems:
        out.print(f"{file}:{p.line}: {p.text}", style="red")
    if not problems:
        out.print("ok", style="green", end=" ")
        out.print(str(file))


def _print(decision: Decision, near: list[Near], files: FileRules | None) -> None:
    from gateway.policy.file_rules import granted_in_words

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
        out.print(f"{match.rule}{shadow}: {one_line(match.part)}")
    if near:
        out.print("\nnearly matched", style="bold")
    for miss in near:
        out.print(f"  {miss.effect:<5} {miss.rule}: {one_line(miss.part)}")
        out.print(f"        {miss.condition}: {one_line(miss.why)}", style="dim")
