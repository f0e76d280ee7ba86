"""`airlock`: the command line, put together from one module a subcommand."""

from __future__ import annotations

import typer

from gateway.cli import approvals, doctor, init, key, policy, process, run, serve, tool

app = typer.Typer(
    help="Airlock: a sandboxed, multi-tenant tool-execution gateway.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=True,
)
app.command("init")(init.init)
app.command("serve")(serve.serve)
app.command("run")(run.run)
app.command("doctor")(doctor.doctor)
app.add_typer(tool.app, name="tool")
app.add_typer(approvals.app, name="approvals")
app.add_typer(process.app, name="process")
app.add_typer(key.app, name="key")
app.add_typer(policy.app, name="policy")


def main() -> None:
    """Run the command line."""
    app()
