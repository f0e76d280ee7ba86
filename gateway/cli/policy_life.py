"""`airlock policy apply, history, rollback, current`: versions of policies, on a database or over the API."""

from __future__ import annotations

import getpass
from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from gateway.cli.key_backend import CONFIG, AtAddress, ConfigFile
from gateway.cli.policy_backend import Applied, as_document, policy_desk, time_of
from gateway.cli.rows import Rows
from gateway.cli.terminal import (
    EXIT_BAD_NEWS,
    EXIT_USAGE,
    Json,
    Key,
    err,
    error_details,
    fail,
    out,
    print_json,
    run_client,
)

if TYPE_CHECKING:
    from gateway.storage.policy_store import Change

_LIVE = "live on every gateway of this database within a second"

OfTenant = Annotated[str | None, typer.Option("--tenant", help="The tenant's own layer.")]
OperatorLayer = Annotated[bool, typer.Option("--operator-layer", help="The layer that holds for every tenant.")]
By = Annotated[
    str | None,
    typer.Option(help="Who does this; the user of this machine unless given. With --address the key says it."),
]
Comment = Annotated[str, typer.Option(help="Why, for the history.")]
T = TypeVar("T")


def register(app: typer.Typer) -> None:
    """Add the commands to `airlock policy`."""
    for command in (apply, history, rollback, current):
        app.command()(command)


def apply(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A policy file.")],
    *,
    tenant: OfTenant = None,
    operator_layer: OperatorLayer = False,
    comment: Comment = "",
    expected_version: Annotated[
        str | None,
        typer.Option(metavar="VERSION", help='Only while this version is in force; "" while nothing ever was.'),
    ] = None,
    by: By = None,
    config: ConfigFile = CONFIG,
    address: AtAddress = "",
    key: Key = "",
    as_json: Json = False,
) -> None:
    """Put a policy in force, if it loads and fits. Exits 1 and changes nothing when it does not."""
    layer = _layer(tenant, operator_layer=operator_layer, as_json=as_json)

    async def work() -> Applied:
        from gateway.policy_versions.policy_check import read_policy_file

        text = read_policy_file(file, "FILE")
        async with policy_desk(config, layer, address, key) as desk:
            return await desk.apply(text, str(file), by=_who(by), comment=comment, expected_version=expected_version)

    _show_applied(_run(work(), as_json=as_json), as_json=as_json)


def rollback(
    version: Annotated[
        str | None,
        typer.Argument(metavar="VERSION", help="As history shows it; the one that was in force before unless given."),
    ] = None,
    *,
    tenant: OfTenant = None,
    operator_layer: OperatorLayer = False,
    comment: Comment = "",
    by: By = None,
    config: ConfigFile = CONFIG,
    address: AtAddress = "",
    key: Key = "",
    as_json: Json = False,
) -> None:
    """Put an earlier version in force again; done twice, it goes back twice.

    Without VERSION it undoes what was applied last and not undone yet.
    """
    layer = _layer(tenant, operator_layer=operator_layer, as_json=as_json)

    async def work() -> Applied:
        async with policy_desk(config, layer, address, key) as desk:
            return await desk.rollback(version, by=_who(by), comment=comment)

    _show_applied(_run(work(), as_json=as_json), as_json=as_json)


def history(
    *,
    tenant: OfTenant = None,
    operator_layer: OperatorLayer = False,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="At most so many, the newest first.")] = 20,
    config: ConfigFile = CONFIG,
    address: AtAddress = "",
    key: Key = "",
    as_json: Json = False,
) -> None:
    """List what was in force, since when, and who did that; the first is in force."""
    layer = _layer(tenant, operator_layer=operator_layer, as_json=as_json)

    async def work() -> Sequence[tuple[Change, str]]:
        async with policy_desk(config, layer, address, key) as desk:
            return await desk.history(limit)

    found = _run(work(), as_json=as_json)
    if as_json:
        print_json([as_document(change, version) for change, version in found])
        return
    if not found:
        out.print("nothing was ever applied here")
        return
    rows = []
    for change, version in found:
        named = version or f"{change.digest[:12]} (does not load)"
        rows.append((time_of(change.at_us), named, _how(change.kind, change.by), change.comment))
    out.print(Rows(("since", "version", "by", "comment"), rows))


def current(
    *,
    tenant: OfTenant = None,
    operator_layer: OperatorLayer = False,
    text: Annotated[bool, typer.Option("--text", help="Print the policy itself.")] = False,
    config: ConfigFile = CONFIG,
    address: AtAddress = "",
    key: Key = "",
    as_json: Json = False,
) -> None:
    """Say what is in force: each layer, and the version that runs and tool calls record."""
    layer = _layer(tenant, operator_layer=operator_layer, as_json=as_json)

    async def work() -> dict[str, Any]:
        async with policy_desk(config, layer, address, key) as desk:
            return await desk.describe(with_text=text)

    found = _run(work(), as_json=as_json)
    if as_json:
        print_json(found)
    elif text:
        out.print(found["text"], markup=False, end="")
    else:
        own, operator = found, found["operator"]
        out.print(f"{own['version']} since {own['at']}, {_how(own['kind'], own['by'])}", markup=False)
        if operator is not None:
            how = _how(operator["kind"], operator["by"])
            out.print(f"operator's layer: {operator['version']} since {operator['at']}, {how}", markup=False)
        out.print(f"in force: {found['in_force']}")
        if found["file"] is not None:
            out.print(f"watched file: {found['file']['path']}: {found['file']['state']}", markup=False)


def _layer(tenant: str | None, *, operator_layer: bool, as_json: bool) -> str:
    if tenant is not None and operator_layer:
        fail("--tenant and --operator-layer: one of them, not both", EXIT_USAGE, as_json=as_json)
    if (tenant is None) is not operator_layer or tenant == "":
        fail("one of --tenant NAME and --operator-layer is needed", EXIT_USAGE, as_json=as_json)
    return tenant or ""


def _run(work: Coroutine[Any, Any, T], *, as_json: bool) -> T:
    """Run what is asked of a desk; what is not there, or not any more, is bad news and no fault of a gateway."""
    from gateway.errors import NotFound, PolicyChanged

    async def found() -> T | NotFound | PolicyChanged:
        try:
            return await work
        except (NotFound, PolicyChanged) as error:
            return error

    answer = run_client(found(), as_json=as_json)
    if isinstance(answer, NotFound | PolicyChanged):
        fail(str(answer), EXIT_BAD_NEWS, as_json=as_json, details=error_details(answer))
    return answer


def _show_applied(applied: Applied, *, as_json: bool) -> None:
    change = applied.change
    if as_json:
        errors = [{"line": p.line, "field": p.field, "message": p.message} for p in applied.problems]
        if applied.refused and not errors:
            errors = [{"line": 0, "field": "", "message": applied.refused}]
        told = (
            {}
            if change is None
            else {**as_document(change, applied.version), "before": applied.before, "unchanged": applied.unchanged}
        )
        differs = {"watched_file_differs": applied.other_file} if applied.other_file else {}
        print_json({"ok": change is not None, "errors": errors, **told, **differs})
    elif change is None:
        out.print(applied.refused, style="red", markup=False)
        out.print("nothing was changed")
    elif applied.unchanged:
        out.print(f"{applied.version} is in force already, since {time_of(change.at_us)}")
    elif change.kind == "rollback":
        out.print(f"rolled back from {applied.before} to {applied.version}: {_LIVE}")
    else:
        out.print(f"applied {applied.version}: {_LIVE}")
    if applied.other_file and not as_json:
        said = f"{applied.other_file} says something else: the next edit of it replaces this. Write the same into it"
        err.print(said, style="yellow")
    if change is None:
        raise typer.Exit(EXIT_BAD_NEWS)


def _how(kind: str, by: str) -> str:
    """Say how it came into force; of a file, `by` names it already."""
    return by if kind == "file" else f"{kind} by {by}"


def _who(by: str | None) -> str:
    try:
        return by or getpass.getuser()
    except (KeyError, OSError):  # a user without a name
        return "unknown"
