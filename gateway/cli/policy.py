"""`airlock policy`: check a policy file, explain a decision."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from gateway.cli.terminal import EXIT_BAD_NEWS, EXIT_USAGE, Json, fail, out, print_json

app = typer.Typer(help="Policies.", no_args_is_help=True)
File = Annotated[Path, typer.Argument(metavar="FILE", help="A policy file.")]


@app.command()
def check(file: File, *, as_json: Json = False) -> None:
    """Say whether a policy file loads, and if not what is wrong in which line."""
    from gateway.policy import check_policy_file

    problems = check_policy_file(file)
    if as_json:
        errors = [{"line": p.line, "field": p.field, "message": p.message} for p in problems]
        print_json({"ok": not problems, "errors": errors})
    elif problems:
        for p in problems:
            out.print(f"{file}:{p.line}: {p.field}: {p.message}", style="red", markup=False)
    else:
        out.print(f"[green]ok[/] {file}")
    if problems:
        raise typer.Exit(EXIT_BAD_NEWS)


@app.command()
def explain(
    file: File,
    *,
    tool: Annotated[str, typer.Option(help="Name of the tool.")],
    args: Annotated[str, typer.Option(help="Arguments as a JSON object.")] = "{}",
    as_json: Json = False,
) -> None:
    """Show which rule decides a call."""
    from agent.capabilities.filesystem import filesystem
    from agent.messages import ToolCall
    from agent.toolbox import Toolbox
    from gateway.policy import PolicyError, load_policy
    from sandbox.local_fs import LocalFS

    try:
        policy = load_policy(file.read_text(encoding="utf-8"), str(file))
        arguments = json.loads(args)
    except PolicyError:
        fail(f"{file} does not load: `airlock policy check {file}` says why", EXIT_USAGE, as_json=as_json)
    except (OSError, ValueError) as error:
        fail(str(error), EXIT_USAGE, as_json=as_json)
    if not isinstance(arguments, dict):
        fail("--args: a JSON object is expected", EXIT_USAGE, as_json=as_json)
    # Judged as a real call would be: with the path that the tool would open.
    call = ToolCall(id="explain", name=tool, arguments=arguments)
    final = Toolbox(filesystem(LocalFS()).tools).normalised(call).arguments or {}
    decision = policy.judge(tool, final)
    if as_json:
        print_json({"verdict": decision.verdict, "rule": decision.rule, "reason": decision.reason})
    else:
        style = "green" if decision.verdict == "allow" else "red"
        out.print(f"{decision.verdict} by {decision.rule}: {decision.reason}", style=style, markup=False)
