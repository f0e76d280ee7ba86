"""`airlock policy apply, history, rollback, current`: versions of policies, in a database or on a gateway."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gateway.cli.command import BackendCli, check_tenant, user_name
from gateway.cli.printable import Rows
from gateway.cli.terminal import EXIT_BAD_NEWS, err, fail, out
from gateway.errors import NotFound, PolicyChanged

if TYPE_CHECKING:
    from gateway.cli.policy_layer import PolicyLayer

_LIVE = "in force on every gateway of this database within a second"

By = Annotated[
    str | None,
    typer.Option(help="Author of the change; default: the current user. With --address, the key is the author."),
]
Comment = Annotated[str, typer.Option(help="Comment for the history.")]


@dataclass(frozen=True)
class Layer:
    """The layer of policy that a command is about."""

    tenant: Annotated[str | None, typer.Option("--tenant", help="Layer of a tenant.")] = None
    operator_layer: Annotated[bool, typer.Option("--operator-layer", help="Layer that applies to every tenant.")] = (
        False
    )

    @contextlib.asynccontextmanager
    async def opened(self, cli: BackendCli, by: str | None = None) -> AsyncIterator[PolicyLayer]:
        """Open the layer for an author, by default the user. Exits with 1 if a version is missing or was replaced."""
        from gateway.cli.policy_layer import PolicyLayer

        if self.tenant is not None and self.operator_layer:
            fail("use only one of --tenant and --operator-layer")
        if (self.tenant is None) is not self.operator_layer or self.tenant == "":
            fail("one of --tenant NAME and --operator-layer is required")
        layer = self.tenant or ""
        if cli.loaded is not None and layer:
            check_tenant(cli.loaded, layer)
        try:
            async with cli.admin(by or user_name()) as admin:
                yield PolicyLayer(admin, layer, cli.loaded)
        except (NotFound, PolicyChanged):
            cli.failure_code = EXIT_BAD_NEWS
            raise


async def apply(
    cli: BackendCli,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Policy file.")],
    *,
    layer: Layer,
    comment: Comment = "",
    expected_version: Annotated[
        str | None, typer.Option(metavar="VERSION", help='Apply only if this version is in force; "" if none ever was.')
    ] = None,
    by: By = None,
) -> None:
    """Put a policy in force. Exits with 1 and changes nothing if it does not load or does not fit the configuration."""
    from gateway.policy_versions.policy_check import read_policy_file

    # An empty text would be none at all, and an empty file is one that does not load.
    text = read_policy_file(file, "FILE") or "\n"
    async with layer.opened(cli, by) as policies:
        applied = await policies.apply(text, str(file), comment=comment, expected_version=expected_version)
    _show_applied(cli, applied)


async def rollback(
    cli: BackendCli,
    version: Annotated[
        str | None, typer.Argument(metavar="VERSION", help="Version, as listed by history; default: the previous one.")
    ] = None,
    *,
    layer: Layer,
    comment: Comment = "",
    by: By = None,
) -> None:
    """Put an earlier version in force again.

    Without VERSION, undo the last change that has not been undone; repeat to go back further.
    """
    if version == "":
        fail("VERSION is empty: leave it out to return to the previous version")
    async with layer.opened(cli, by) as policies:
        applied = await policies.rollback(version, comment)
    _show_applied(cli, applied)


async def history(
    cli: BackendCli,
    *,
    layer: Layer,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="Maximum number to list, newest first.")] = 20,
) -> None:
    """List the versions of a layer, with times and authors; the first one is in force."""
    async with layer.opened(cli) as policies:
        found = await policies.history(limit)
    rows = []
    for one in found:
        version = one["version"] or f"{one['digest'][:12]} (does not load)"
        rows.append((one["at"], version, _how(one), one["comment"]))
    shown = Rows(("since", "version", "by", "comment"), rows) if found else "no policy was ever applied here"
    cli.show(found, shown)


async def current(
    cli: BackendCli,
    *,
    layer: Layer,
    text: Annotated[bool, typer.Option("--text", help="Print the text of the policy.")] = False,
) -> None:
    """Show the version in force: of each layer, and of both together, as recorded by runs and tool calls."""
    async with layer.opened(cli) as policies:
        found = await policies.describe(with_text=text)
    cli.show(found, (lambda _: out.print(found["text"], end="")) if text else _show)


def _show(found: dict[str, Any]) -> None:
    operator = found["operator"]
    out.print(f"{found['version']} since {found['at']}, {_how(found)}")
    if operator is not None:
        out.print(f"operator's layer: {operator['version']} since {operator['at']}, {_how(operator)}")
    out.print(f"in force: {found['in_force']}")
    if found["file"] is not None:
        out.print(f"watched file: {found['file']['path']}: {found['file']['state']}")


def _show_applied(cli: BackendCli, applied: dict[str, Any]) -> None:
    refused = applied.pop("refused", "")
    cli.show(applied, lambda _: _print_applied(applied, refused), bad_news=bool(refused))


def _print_applied(applied: dict[str, Any], refused: str) -> None:
    if refused:
        out.print(refused, style="red")
        out.print("nothing changed")
        return
    version = applied["version"]
    if applied["unchanged"]:
        out.print(f"{version} is already in force, since {applied['at']}")
    elif applied["kind"] == "rollback":
        out.print(f"rolled back from {applied['before']} to {version}: {_LIVE}")
    else:
        out.print(f"applied {version}: {_LIVE}")
    if other_file := applied.get("watched_file_differs"):
        err.print(f"{other_file} differs, and its next edit will replace this version: update the file", style="yellow")


def _how(change: dict[str, Any]) -> str:
    """Return how a version came into force; for a file, `by` names the file."""
    return str(change["by"]) if change["kind"] == "file" else f"{change['kind']} by {change['by']}"
