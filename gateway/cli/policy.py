"""`airlock policy`: everything about policies that needs no running gateway."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from gateway.cli import policy_life, policy_proof, policy_replay, policy_show
from gateway.cli.policy_files import File, OperatorFile, compiled, read, read_operator, readable
from gateway.cli.printable import one_line
from gateway.cli.terminal import EXIT_BAD_NEWS, EXIT_USAGE, Json, fail, out, print_json

if TYPE_CHECKING:
    from gateway.policy import Decision
    from gateway.policy.explain import Near

app = typer.Typer(help="Policies.", no_args_is_help=True)
app.command("test")(policy_proof.run_tests)
app.command("lint")(policy_proof.lint)
app.command("show")(policy_show.show)
app.command("diff")(policy_proof.diff)
app.command("replay")(policy_replay.replay)
policy_life.register(app)
_STYLES = {"allow": "green", "ask": "yellow", "deny": "red"}


@app.command()
def check(file: File, *, operator: OperatorFile = None, as_json: Json = False) -> None:
    """Say whether a policy file loads, and if not what is wrong in which line."""
    from gateway.policy import check_policy_file

    readable(file, as_json=as_json)
    problems = check_policy_file(file, read_operator(operator, as_json=as_json))
    if as_json:
        errors = [{"line": p.line, "field": p.field, "message": p.message} for p in problems]
        print_json({"ok": not problems, "errors": errors})
    elif problems:
        for p in problems:
            out.print(f"{file}:{p.line}: {p.text}", style="red", markup=False)
    else:
        out.print("ok", style="green", end=" ")
        out.print(str(file))
    if problems:
        raise typer.Exit(EXIT_BAD_NEWS)


@app.command()
def explain(
    file: File,
    *,
    tool: Annotated[str, typer.Option(help="Name of the tool.")],
    args: Annotated[str, typer.Option(help="Arguments as a JSON object.")] = "{}",
    operator: OperatorFile = None,
    at: Annotated[str | None, typer.Option(help="When it is made, as 2026-11-21T03:00; unset means now.")] = None,
    as_json: Json = False,
) -> None:
    """Show which rule decides a call, which others match, and which came near."""
    from agent.capabilities.filesystem import filesystem
    from agent.messages import ToolCall
    from agent.tools.toolbox import Toolbox
    from gateway.policy.decision import Facts
    from gateway.policy.explain import near_misses
    from gateway.policy.policy_tests import moment
    from sandbox.engines.local.local_fs import LocalFS

    above = read_operator(operator, as_json=as_json)
    # Untrue examples and all: why they are untrue is what is asked.
    document = read(file, above, as_json=as_json).document
    policy = compiled(document, above)
    try:
        arguments = json.loads(args)
    except (ValueError, RecursionError) as error:
        fail(f"--args: not JSON: {error}", EXIT_USAGE, as_json=as_json)
    try:
        facts = Facts(at=moment(at))
    except ValueError as error:
        fail(f"--at: {error}", EXIT_USAGE, as_json=as_json)
    if not isinstance(arguments, dict):
        fail("--args: a JSON object is expected", EXIT_USAGE, as_json=as_json)
    # Judged as a real call would be: with the path that the tool would open.
    call = ToolCall(id="explain", name=tool, arguments=arguments)
    final = Toolbox(filesystem(LocalFS()).tools).normalised(call).arguments or {}
    decision = policy.judge(tool, final, facts)
    near = near_misses(document, above, tool, final, facts)
    if as_json:
        said = {"verdict": decision.verdict, "rule": decision.rule, "reason": decision.reason}
        trace = [asdict(match) for match in decision.trace]
        would_be = None if decision.would_be is None else dict(zip(("verdict", "rule"), decision.would_be, strict=True))
        print_json({**said, "trace": trace, "near": [asdict(miss) for miss in near], "would_be": would_be})
    else:
        _print(decision, near)


@app.command()
def schema(*, as_json: Json = False) -> None:
    """Print the JSON Schema of policy files, for editors; with --json on one line."""
    from gateway.policy.schema import policy_schema

    if as_json:
        print_json(policy_schema())
    else:
        out.print_json(data=policy_schema())


def _print(decision: Decision, near: list[Near]) -> None:
    said = f"{decision.verdict} by {decision.rule}: {decision.reason}"
    out.print(one_line(said, 2000), style=_STYLES[decision.verdict], markup=False)
    if decision.would_be is not None:
        verdict, rule = decision.would_be
        out.print(f"with the rules in shadow: {verdict} by {rule}", style="dim", markup=False)
    if decision.trace:
        out.print("\nmatched", style="bold")
    for match in decision.trace:
        shadow = " (shadow)" if match.shadow else ""
        out.print(f"  {match.effect:<5}", style=_STYLES[match.effect], end=" ")
        out.print(f"{match.rule}{shadow}: {one_line(match.part)}", markup=False)
    if near:
        out.print("\nnear", style="bold")
    for miss in near:
        out.print(f"  {miss.effect:<5} {miss.rule}: {one_line(miss.part)}", markup=False)
        out.print(f"        {miss.condition}: {one_line(miss.why)}", style="dim", markup=False)
