"""What every command shares: its common options, connection, output and error handling.

    app = Commands(help="Runs.")

    @app.command()
    async def get(cli: GatewayCli, run_id: RunId) -> None:
        cli.show(await cli.airlock.get_run(run_id), _show)

The annotation of the first parameter decides which common options the command gets: a `Cli` has --json, a
`GatewayCli` adds --address and --key, a `BackendCli` adds --config. Any other parameter whose type is a dataclass is a
group of options.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import getpass
import inspect
import json
import os
import re
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from dataclasses import dataclass, field, fields, is_dataclass
from datetime import UTC, datetime, timedelta
from inspect import Parameter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn, TypeVar, cast, get_type_hints

import typer

from gateway.cli.plain_values import PlainCommand, PlainGroup
from gateway.cli.terminal import (
    DEFAULT_ADDRESS,
    EXIT_BAD_NEWS,
    EXIT_GATEWAY,
    EXIT_INTERRUPTED,
    EXIT_USAGE,
    Failure,
    err,
    fail,
    out,
    print_json,
)
from gateway.errors import AirlockError, Misconfigured, Overloaded, Unavailable
from sandbox.errors import SandboxError

if TYPE_CHECKING:
    from rich.console import RenderableType

    from airlock.admin import AdminCalls
    from gateway.client import Client
    from gateway.config.config import Config

Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Address = Annotated[
    str,
    typer.Option(
        "--address", envvar="AIRLOCK_ADDRESS", help="Address of the gateway, as HOST:PORT.", show_default=True
    ),
]
Key = Annotated[str, typer.Option("--key", envvar="AIRLOCK_API_KEY", help="API key.", show_default=False)]
Yes = Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")]
Limit = Annotated[int, typer.Option(min=1, help="Maximum number to list, newest first.")]
InThread = Annotated[str, typer.Option("--thread", help="Thread whose sandbox to use.")]
OfThread = Annotated[str, typer.Option("--thread", help="Filter by thread.")]
Since = Annotated[
    str, typer.Option("--since", help="Only from this time on: 24h, 7d, or a time such as 2026-11-21T08:00.")
]
Until = Annotated[str, typer.Option("--until", help="Only before this time; same format as --since.")]

CONFIG = Path("airlock.yaml")
ConfigFile = Annotated[Path, typer.Option(help="Configuration file, whose database is used directly.")]

# In the order of --help, after a command's own options.
_COMMON = ("config", "address", "key", "as_json")
_AGO = re.compile(r"([1-9][0-9]{0,5})([mhdw])")
UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])
# What grpc reports if nothing listens at an address, or if its name does not resolve; a gateway sends others.
_NO_CONNECTION = ("failed to connect to all addresses", "errors resolving", "DNS resolution failed")


@dataclass
class Cli:
    """The context of a command: how it prints and how it ends.

    A `failure_code` other than 0 replaces the exit codes for wrong usage and for requests that the gateway refused.
    """

    as_json: Json = False
    failure_code: int = field(default=0, init=False)

    def show(self, document: T, *human: RenderableType | Callable[[T], object], bad_news: bool = False) -> None:
        """Print the document as JSON with --json; otherwise print each of `human`, or call it with the document.

        With `bad_news`, exit with 1 then.
        """
        if self.as_json:
            print_json(document)
        else:
            for one in human:
                one(document) if callable(one) else out.print(one)
        if bad_news:
            raise typer.Exit(EXIT_BAD_NEWS)

    def confirm(self, question: str, *, yes: bool, to_stderr: bool = True) -> None:
        """Ask before data is removed, unless --yes was given."""
        if yes:
            return
        if self.as_json:
            fail("--json cannot ask for confirmation: add --yes")
        typer.confirm(question, abort=True, err=to_stderr)

    def wait(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine from a command that is a plain function, so that Ctrl-C can interrupt its question."""

        async def closing() -> T:
            try:
                return await work
            finally:
                await self.close()

        return asyncio.run(closing())

    def failure_of(self, error: AirlockError) -> Failure:
        """Return how an error ends the command; without a gateway, the cause is the configuration."""
        return Failure(str(error), EXIT_USAGE)

    async def close(self) -> None:
        """Close the command's connection."""

    @contextlib.contextmanager
    def errors_end_it(self) -> Iterator[None]:
        """Turn the errors of a block into a message and an exit code."""
        try:
            yield
        except Failure as failure:
            self._end(failure)
        except KeyboardInterrupt:
            raise typer.Exit(EXIT_INTERRUPTED) from None
        except AirlockError as error:
            self._end(self.failure_of(error))
        except SandboxError as error:
            self._end(Failure(str(error), EXIT_USAGE))
        except BrokenPipeError:
            raise
        except OSError as error:
            where = "" if error.filename is None else f"{os.fsdecode(error.filename)}: "
            said = error.strerror or str(error) or type(error).__name__
            self._end(Failure(f"{where}{said}", EXIT_USAGE))

    def _end(self, failure: Failure) -> NoReturn:
        if self.as_json:
            print_json({"error": str(failure), **failure.details})
        else:
            err.print("error:", style="bold red", end=" ")
            err.print(str(failure))
        replaced = self.failure_code and failure.code in (EXIT_USAGE, EXIT_GATEWAY)
        raise typer.Exit(self.failure_code if replaced else failure.code) from None


@dataclass
class GatewayCli(Cli):
    """The context of a command that calls a gateway."""

    address: Address = DEFAULT_ADDRESS
    key: Key = ""

    @functools.cached_property
    def airlock(self) -> Client:
        """The client, created on first use, because importing it is slow."""
        from gateway.client import Client

        return Client(self.address, self.key)

    def failure_of(self, error: AirlockError) -> Failure:
        code = EXIT_USAGE if isinstance(error, Misconfigured) else EXIT_GATEWAY
        hint = ""
        if isinstance(error, Unavailable) and str(error).removeprefix("UNAVAILABLE: ").startswith(_NO_CONNECTION):
            hint = ". Is the gateway running? Start it with `airlock serve`"
        return Failure(f"{error}{hint}", code, _details(error))

    async def close(self) -> None:
        if "airlock" in self.__dict__:
            await self.airlock.aclose()


def address_of(context: typer.Context, given: str) -> str:
    """Return the gateway's address, or "" to use the database.

    AIRLOCK_ADDRESS counts only if there is neither --address nor a configuration file.
    """
    source = context.get_parameter_source("config")
    if given or context.resilient_parsing or source is None or source.name != "DEFAULT" or CONFIG.exists():
        return given
    return os.environ.get("AIRLOCK_ADDRESS", "")


AtAddress = Annotated[
    str,
    typer.Option(
        "--address",
        help="Address of a gateway to use instead of the database, as HOST:PORT; needs an operator key. Without "
        "--config and ./airlock.yaml, the default is AIRLOCK_ADDRESS.",
        callback=address_of,
    ),
]


@dataclass
class BackendCli(GatewayCli):
    """The context of a command that calls a gateway if it has an address, and else uses the database."""

    address: AtAddress = ""
    key: Key = ""
    config: ConfigFile = CONFIG

    @functools.cached_property
    def loaded(self) -> Config | None:
        """The configuration, None if a gateway is called."""
        from gateway.config.config import Config

        return None if self.address else Config.load(self.config)

    @contextlib.asynccontextmanager
    async def admin(self, by: str = "") -> AsyncIterator[AdminCalls]:
        """Open the calls of AdminService. Without a gateway, `by` or else the current user is who makes them."""
        if self.loaded is None:
            yield self.airlock
            return
        from gateway.cli.local_admin import local_admin

        async with local_admin(self.loaded, by or f"local:{user_name()}") as admin:
            yield admin

    def failure_of(self, error: AirlockError) -> Failure:
        failure = super().failure_of(error)
        return failure if self.address else Failure(str(failure), EXIT_USAGE, failure.details)


class Commands(typer.Typer):
    """A group of commands, built from functions and coroutine functions as described at the top of this module."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(no_args_is_help=True, **{"cls": PlainGroup, **settings})

    def command(self, name: str | None = None, **settings: Any) -> Callable[[F], F]:
        add = super().command(name, **{"cls": PlainCommand, **settings})

        def added(function: F) -> F:
            add(command(function))
            return function

        return added


def command(function: Callable[..., Any]) -> Callable[..., Any]:
    """Make a Typer command of a function whose first parameter is a `Cli`; return any other function as it is."""
    signature = inspect.signature(function, eval_str=True)
    first, *own = signature.parameters.values()
    kind = first.annotation
    if not (isinstance(kind, type) and issubclass(kind, Cli)):
        return function
    common = sorted(_options(kind), key=lambda option: _COMMON.index(option.name))
    groups = {one.name: cast(type, one.annotation) for one in own if is_dataclass(one.annotation)}
    expanded = [option for one in own for option in (_options(one.annotation) if one.name in groups else [one])]

    @functools.wraps(function)
    def run(**given: Any) -> None:
        cli = kind(**{option.name: given.pop(option.name) for option in common})
        with cli.errors_end_it():
            for name, group in groups.items():
                given[name] = group(**{option.name: given.pop(option.name) for option in _options(group)})
            if inspect.iscoroutinefunction(function):
                cli.wait(function(cli, **given))
            else:
                function(cli, **given)

    run.__signature__ = signature.replace(parameters=[*expanded, *common])  # type: ignore[attr-defined]
    return run


async def taken(items: AsyncIterator[T], limit: int = 0) -> list[T]:
    """Return at most the first `limit` items, or all with 0."""
    found: list[T] = []
    async for item in items:
        found.append(item)
        if len(found) == limit:
            break
    return found


def moment(text: str, now: datetime) -> datetime:
    """Parse 30m, 12h, 7d, 2w, a date or a time, local unless it has an offset. Raises typer.BadParameter."""
    ago = _AGO.fullmatch(text)
    if ago is not None:
        try:
            return now - timedelta(seconds=int(ago[1]) * UNITS_S[ago[2]])
        except OverflowError as error:
            raise typer.BadParameter(f"{text!r} is before the year 1; write 7d or less") from error
    try:
        return datetime.fromisoformat(text).astimezone()
    except (ValueError, OverflowError) as error:
        raise typer.BadParameter(
            f"{text!r} is not a time; write 30m, 12h, 7d, 2w, 2026-11-21 or 2026-11-21T08:00"
        ) from error


def moment_of(option: str, text: str) -> datetime | None:
    """Return the time of an option, None if it is empty; end the command if it is not a time."""
    try:
        return moment(text, datetime.now(UTC)) if text else None
    except typer.BadParameter as error:
        fail(f"{option}: {error}")


def json_object(name: str, text: str) -> dict[str, Any]:
    """Return the JSON object that an argument or option holds; end the command if it is not one."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        fail(f"{name} is not valid JSON: {error}")
    if not isinstance(found, dict):
        fail(f'{name} must be a JSON object, such as \'{{"path": "/workspace"}}\'')
    return found


def _options(group: type) -> list[Parameter]:
    hints = get_type_hints(group, include_extras=True)
    return [
        Parameter(one.name, Parameter.KEYWORD_ONLY, default=one.default, annotation=hints[one.name])
        for one in fields(group)
        if one.init
    ]


def _details(error: AirlockError) -> dict[str, str | float]:
    """Return an error's reason and details, such as quota or approval_id, for programs."""
    details: dict[str, str | float] = {"reason": error.reason}
    details |= {name: value for name, value in error.details.items() if name not in ("error", "reason")}
    if isinstance(error, Overloaded) and error.retry_after_s is not None:
        details["retry_after_s"] = error.retry_after_s
    return details


def check_tenant(config: Config, tenant: str) -> None:
    """Raise Misconfigured for an unknown tenant."""
    if tenant not in config.tenants:
        raise Misconfigured(f"unknown tenant {tenant!r}; configured tenants: {', '.join(sorted(config.tenants))}")


def user_name() -> str:
    """Return the name of the user who runs the command."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a user without a name
        return "unknown"
