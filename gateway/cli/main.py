"""`airlock`: the command line, put together from one module a subcommand."""

from __future__ import annotations

import logging

from gateway.cli import (
    approvals,
    audit,
    bench,
    doctor,
    engine_proxy,
    files,
    init,
    key,
    policy,
    process,
    run,
    runs,
    sandbox,
    serve,
    tenant,
    thread,
    tool,
    uninstall,
)
from gateway.cli import exec as exec_command
from gateway.cli.command import Commands
from gateway.cli.global_options import set_up
from gateway.cli.process_start import START_SETTINGS

app = Commands(help="Airlock: a sandboxed, multi-tenant tool-execution gateway.", pretty_exceptions_enable=False)
app.callback()(set_up)
app.command("init")(init.init)
app.command("serve")(serve.serve)
app.command("run")(run.run)
app.command("exec", cls=exec_command.ExecCommand, context_settings=START_SETTINGS)(exec_command.exec_)
app.command("doctor")(doctor.doctor)
app.command("bench")(bench.bench)
app.command("uninstall")(uninstall.uninstall)
app.command("engine-proxy")(engine_proxy.engine_proxy)
app.add_typer(runs.app, name="runs")
app.add_typer(thread.app, name="thread")
app.add_typer(files.app, name="files")
app.add_typer(tool.app, name="tool")
app.add_typer(approvals.app, name="approvals")
app.add_typer(audit.app, name="audit")
app.add_typer(process.app, name="process")
app.add_typer(sandbox.app, name="sandbox")
app.add_typer(key.app, name="key")
app.add_typer(policy.app, name="policy")
app.add_typer(tenant.app, name="tenant")

# What the engine logs is for a log, and only serve has one (gateway/telemetry/logging.py): the others say in their own
# words what their reader must know. Without this the standard library prints it on stderr.
logging.getLogger("sandbox").addHandler(logging.NullHandler())


def main() -> None:
    """Run the command line."""
    app()
