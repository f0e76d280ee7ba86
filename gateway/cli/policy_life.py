"""`airlock policy apply, history, rollback, current`: versions of policies, in the database that gateways use."""

from __future__ import annotations

import contextlib
import getpass
from collections.abc import AsyncIterator, Coroutine, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer
from rich.table import Table

from gateway.cli.terminal import EXIT_BAD_NEWS, EXIT_USAGE, Json, fail, out, print_json, run_client

if TYPE_CHECKING:
    from gateway.config import Config
    from gateway.policies import Policies
    from gateway.policy import PolicyDocument, PolicyProblem
    from gateway.storage.policy_store import Change, Kind

_LIVE = "live on every gateway of this database within a second"
_LEAST_DIGEST_CHARS = 6

ConfigFile = Annotated[Path, typer.Option(help="Configuration file.")]
OfTenant = Annotated[str | None, typer.Option("--tenant", help="The tenant's own layer.")]
OperatorLayer = Annotated[bool, typer.Option("--operator-layer", help="The layer that holds for every tenant.")]
By = Annotated[str | None, typer.Option(help="Who does this; the user of this machine unless given.")]
Comment = Annotated[str, typer.Option(help="Why, for the history.")]
_CONFIG = Path("airlock.yaml")
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
    by: By = None,
    config: ConfigFile = _CONFIG,
    as_json: Json = False,
) -> None:
    """Put a policy in force, if it loads and fits. Exits 1 and changes nothing when it does not."""
    layer = _layer(tenant, operator_layer=operator_layer, as_json=as_json)

    async def work() -> _Applied:
        from gateway.policy_check import read_policy_file

        async with _opened(config, layer) as life:
            return await life.put(read_policy_file(file, "FILE"), "apply", str(file), _who(by), comment)

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
    config: ConfigFile = _CONFIG,
    as_json: Json = False,
) -> None:
    """Put an earlier version in force again; done twice, it goes back twice.

    Without VERSION it undoes what was applied last and not undone yet.
    """
    layer = _layer(tenant, operator_layer=operator_layer, as_json=as_json)

    async def work() -> _Applied:
        async with _opened(config, layer) as life:
            change = await life.earlier(version)
            text = await life.policies.store.text(change.digest)
            return await life.put(text, "rollback", f"change {change.id}", _who(by), comment)

    _show_applied(_run(work(), as_json=as_json), as_json=as_json)


def history(
    *,
    tenant: OfTenant = None,
    operator_layer: OperatorLayer = False,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="At most so many, the newest first.")] = 20,
    config: ConfigFile = _CONFIG,
    as_json: Json = False,
) -> None:
    """List what was in force, since when, and who did that; the first is in force."""
    layer = _layer(tenant, operator_layer=operator_layer, as_json=as_json)

    async def work() -> list[tuple[Change, str]]:
        async with _opened(config, layer) as life:
            changes = await life.policies.store.history(layer, limit)
            return [(change, await life.version(change)) for change in changes]

    found = _run(work(), as_json=as_json)
    if as_json:
        print_json([_as_json(change, version) for change, version in found])
        return
    if not found:
        out.print("nothing was ever applied here")
        return
    table = Table(box=None, header_style="bold")
    for name in ("since", "version", "by", "comment"):  # what is to be copied stays whole
        table.add_column(name, no_wrap=name in ("since", "version"), overflow="fold")
    for change, version in found:
        named = version or f"{change.digest[:12]} (does not load)"
        table.add_row(_time(change.at_us), named, _how(change.kind, change.by), change.comment)
    out.print(table, markup=False)


def current(
    *,
    tenant: OfTenant = None,
    operator_layer: OperatorLayer = False,
    text: Annotated[bool, typer.Option("--text", help="Print the policy itself.")] = False,
    config: ConfigFile = _CONFIG,
    as_json: Json = False,
) -> None:
    """Say what is in force: each layer, and the version that runs and tool calls record."""
    layer = _layer(tenant, operator_layer=operator_layer, as_json=as_json)

    async def work() -> dict[str, Any]:
        async with _opened(config, layer) as life:
            return await life.describe(with_text=text)

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


@dataclass(frozen=True)
class _Applied:
    """What came of it: a change, or why there is none."""

    tenant: str
    version: str = ""
    change: Change | None = None
    before: str = ""
    unchanged: bool = False
    refused: str = ""
    problems: tuple[PolicyProblem, ...] = ()


class _Life:
    """The versions of one layer."""

    def __init__(self, config: Config, policies: Policies, layer: str) -> None:
        self.policies = policies
        self._config = config
        self._layer = layer

    async def put(self, text: str, kind: Kind, source: str, by: str, comment: str) -> _Applied:
        """Check a text and put it in force."""
        from gateway.errors import Misconfigured
        from gateway.policy import PolicyError
        from gateway.policy_check import PolicyChecker
        from gateway.storage.policy_store import digest_of_text
        from gateway.tenant_agents import agents_of_all

        try:
            checker = PolicyChecker(self._config, agents_of_all(self._config))
            await checker.check(self._layer, text, source, self.policies)
        except Misconfigured as error:
            cause = error.__cause__
            problems = tuple(cause.errors) if isinstance(cause, PolicyError) else ()
            return _Applied(self._layer, refused=str(error), problems=problems)
        before = self.policies.change_in_force(self._layer)
        if before is not None and before.digest == digest_of_text(text):
            return _Applied(self._layer, await self.version(before), before, unchanged=True)
        change = await self.policies.store.apply(self._layer, text, kind, by, comment)
        was = await self.version(before) or before.digest if before is not None else ""
        return _Applied(self._layer, await self.version(change), change, before=was)

    async def earlier(self, version: str | None) -> Change:
        """Return the newest change whose version is that one; without one, that before what is not undone yet."""
        from gateway.errors import NotFound

        found = await self.policies.store.history(self._layer, 1000)
        if version is None:
            standing = _standing(found)
            if len(standing) > 1:
                return standing[-2]
            raise NotFound("there is no version to go back to; `airlock policy history` lists those there are")
        for change in found:
            if await self.version(change) == version or (
                len(version) >= _LEAST_DIGEST_CHARS and change.digest.startswith(version)
            ):
                return change
        raise NotFound(f"no version {version!r}; `airlock policy history` lists those there are")

    async def version(self, change: Change) -> str:
        """Return a version's name, "" where its text does not load any more."""
        document = await self._document(change)
        return "" if document is None else _named(document)

    async def describe(self, *, with_text: bool) -> dict[str, Any]:
        """Return what is in force."""
        from gateway.errors import NotFound
        from gateway.policies import layered
        from gateway.storage.policy_store import OPERATOR

        own, operator = self.policies.change_in_force(self._layer), self.policies.change_in_force(OPERATOR)
        if own is None:
            raise NotFound("nothing is in force here; `airlock policy apply` applies a policy")
        found = _as_json(own, await self.version(own))
        over = None if self._layer == OPERATOR else operator
        found["operator"] = None if over is None else _as_json(over, await self.version(over))
        documents = [await self._document(own), *([await self._document(over)] if over is not None else [])]
        loaded = [document for document in documents if document is not None]
        found["in_force"] = layered(*loaded).version if len(loaded) == len(documents) else ""
        found["file"] = self._file(own)
        if with_text:
            found["text"] = await self.policies.store.text(own.digest)
        return found

    def _file(self, own: Change) -> dict[str, str] | None:
        """Return the file that the configuration names for the layer, and how it stands to what is in force."""
        from gateway.errors import Misconfigured
        from gateway.policy import PolicyError, load_policy
        from gateway.policy_check import read_policy_file
        from gateway.storage.policy_store import OPERATOR, digest_of_text

        config = self._config
        named = config.operator_policy if self._layer == OPERATOR else config.tenants[self._layer].policy
        if named is None:
            return None
        path = config.path(named)
        try:
            text = read_policy_file(path, "the file")
            state = "in force" if digest_of_text(text) == own.digest else "not what is in force"
            load_policy(text, str(path))
        except Misconfigured:
            state = "cannot be read"
        except PolicyError:
            state = "does not load, and is not in force"
        return {"path": str(path), "state": state}

    async def _document(self, change: Change) -> PolicyDocument | None:
        from gateway.policies import stored_document

        try:
            return stored_document(await self.policies.store.text(change.digest))
        except ValueError:
            return None


@contextlib.asynccontextmanager
async def _opened(path: Path, layer: str) -> AsyncIterator[_Life]:
    from gateway.config import Config
    from gateway.errors import Misconfigured
    from gateway.policies import Policies
    from gateway.storage.database import Database
    from gateway.storage.policy_store import OPERATOR, PolicyStore

    config = Config.load(path)
    if layer != OPERATOR and layer not in config.tenants:
        raise Misconfigured(f"tenant {layer!r} is not one of {', '.join(sorted(config.tenants))}")
    config.path(config.state_dir).mkdir(parents=True, exist_ok=True, mode=0o700)
    database = await Database.open(config.resolved_database_url())
    policies = Policies(PolicyStore(database))
    try:
        await policies.open()
        yield _Life(config, policies, layer)
    finally:
        policies.close()
        await database.close()


def _layer(tenant: str | None, *, operator_layer: bool, as_json: bool) -> str:
    if tenant is not None and operator_layer:
        fail("--tenant and --operator-layer: one of them, not both", EXIT_USAGE, as_json=as_json)
    if (tenant is None) is not operator_layer or tenant == "":
        fail("one of --tenant NAME and --operator-layer is needed", EXIT_USAGE, as_json=as_json)
    return tenant or ""


def _run(work: Coroutine[Any, Any, T], *, as_json: bool) -> T:
    """Run what works on the database; what is not there is bad news and no fault of a gateway."""
    from gateway.errors import NotFound

    async def found() -> T | NotFound:
        try:
            return await work
        except NotFound as error:
            return error

    answer = run_client(found(), as_json=as_json)
    if isinstance(answer, NotFound):
        fail(str(answer), EXIT_BAD_NEWS, as_json=as_json)
    return answer


def _show_applied(applied: _Applied, *, as_json: bool) -> None:
    change = applied.change
    if as_json:
        errors = [{"line": p.line, "field": p.field, "message": p.message} for p in applied.problems]
        if applied.refused and not errors:
            errors = [{"line": 0, "field": "", "message": applied.refused}]
        told = (
            {}
            if change is None
            else {**_as_json(change, applied.version), "before": applied.before, "unchanged": applied.unchanged}
        )
        print_json({"ok": change is not None, "errors": errors, **told})
    elif change is None:
        out.print(applied.refused, style="red", markup=False)
        out.print("nothing was changed")
    elif applied.unchanged:
        out.print(f"{applied.version} is in force already, since {_time(change.at_us)}")
    elif change.kind == "rollback":
        out.print(f"[green]rolled back[/] from {applied.before} to {applied.version}: {_LIVE}")
    else:
        out.print(f"[green]applied[/] {applied.version}: {_LIVE}")
    if change is None:
        raise typer.Exit(EXIT_BAD_NEWS)


def _as_json(change: Change, version: str) -> dict[str, Any]:
    return {
        "tenant": change.tenant or None,
        "version": version,
        "digest": change.digest,
        "kind": change.kind,
        "by": change.by,
        "comment": change.comment,
        "at": _time(change.at_us),
    }


def _standing(newest_first: Sequence[Change]) -> list[Change]:
    """Return the changes that no rollback has undone, oldest first; the last is in force."""
    standing: list[Change] = []
    for change in reversed(newest_first):
        if change.kind == "rollback":
            before = [n for n, earlier in enumerate(standing[:-1]) if earlier.digest == change.digest]
            if before:
                del standing[before[-1] + 1 :]
                continue
        if not standing or standing[-1].digest != change.digest:
            standing.append(change)
    return standing


def _how(kind: str, by: str) -> str:
    """Say how it came into force; of a file, `by` names it already."""
    return by if kind == "file" else f"{kind} by {by}"


def _named(document: PolicyDocument) -> str:
    from gateway.policies import version_of

    return version_of(document)


def _time(at_us: int) -> str:
    return datetime.fromtimestamp(at_us / 1_000_000, UTC).isoformat(timespec="seconds")


def _who(by: str | None) -> str:
    try:
        return by or getpass.getuser()
    except (KeyError, OSError):  # a user without a name
        return "unknown"
