"""`airlock doctor`: check this machine, the engine and a configuration, and say how to fix what fails."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from gateway.cli.command import Cli
from gateway.cli.printable import Rows
from gateway.cli.terminal import SlowWork, out

if TYPE_CHECKING:
    from gateway.cli.finding import Finding

_STYLES = {"ok": "green", "warning": "yellow", "failed": "red"}


async def doctor(
    cli: Cli,
    *,
    engine_url: Annotated[str | None, typer.Option(help="Docker engine to check; default: as for docker.")] = None,
    config: Annotated[Path | None, typer.Option(help="Configuration to check, with its policies and engine.")] = None,
) -> None:
    """Check Python, disk, open files, engine, images and runtimes, and test limits in a sandbox.

    Exits with 1 if a check failed.
    """
    from gateway.cli.doctor_checks import Checks

    with SlowWork("checking") as slow:
        checks = Checks(slow, engine_url)
        await checks.run(config)
    ok = all(finding.state != "failed" for finding in checks.findings)
    cli.show({"ok": ok, "findings": checks.findings}, lambda _: _print(checks.findings), bad_news=not ok)


def _print(findings: Sequence[Finding]) -> None:
    rows = [(finding.what, Text(finding.state, _STYLES[finding.state]), finding.detail) for finding in findings]
    out.print(Rows(("what", "state", "detail"), rows))
    for finding in findings:
        if finding.fix:
            out.print(f"\n{finding.what}:", style="bold", end=" ")
            out.print(finding.fix)
