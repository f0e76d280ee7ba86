"""What every command is written with: its common options, its connection, its output, and how an error ends it.

    app = Commands(help="Runs.")

    @app.command()
    async def get(cli: GatewayCli, run_id: RunId) -> None:
        cli.show(await cli.airlock.get_run(run_id), _show)

The annotation of the first parameter says which options the command gets besides its own: a `Cli` has --json, a
`GatewayCli` --address and --key too, a `BackendCli` (backend.py) also --config. Any other parameter that is a
dataclass is a group of options in the same way.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from dataclasses import dataclass, field, fields, is_dataclass
from inspect import Parameter
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, cast, get_type_hints

import typer

from gateway.cli.terminal import (
    DEFAULT_ADDRESS,
    EXIT_GATEWAY,
    EXIT_INTERRUPTED,
    EXIT_USAGE,
    Failure,
    err,
    fail,
    out,
    print_json,
)

if TYPE_CHECKING:
    from rich.console import RenderableType

    from gateway.client import Client
    from gateway.errors import AirlockError, Unavailable

Json = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]
Address = Annotated[
    str, typer.Option("--address", envvar="AIRLOCK_ADDRESS", help="HOST:PORT of the gateway.", show_default=True)
]
Key = Annotated[str, typer.Option("--key", envvar="AIRLOCK_API_KEY", help="API key.", show_default=False)]
Yes = Annotated[bool, typer.Option("--yes", help="Do not ask.")]

# As --help lists them, after a command's own.
_COMMON = ("config", "address", "key", "as_json")
T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])
# As grpc writes them: nothing listens there or answers, and the name stands for no address.
_NO_CONNECTION = ("failed to connect to all addresses", "errors resolving", "DNS resolution failed")


@dataclass
class Cli:
    """A command that runs: how it prints and how it ends.

    `failure_code`, where it is not 0, takes the place of the exit codes of wrong usage and of what a gateway refuses.
    """

    as_json: Json = False
    failure_code: int = field(default=0, init=False)

    def show(self, document: T, human: RenderableType | Callable[[T], object] | None = None) -> None:
        """Print the document for programs; for people what is given for them, or what that function prints of it."""
        if self.as_json:
            print_json(document)
        elif callable(human):
            human(document)
        elif human is not None:
            out.print(human)

    def confirm(self, question: str, *, yes: bool, to_stderr: bool = True) -> None:
        """Ask before something is gone for good, unless --yes was given."""
        if yes:
            return
        if self.as_json:
            fail("nobody can be asked with --json: say --yes")
        typer.confirm(question, abort=True, err=to_stderr)

    def wait(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine of a command that is none itself: one that asks, where Ctrl-C must interrupt the question."""
        return asyncio.run(self._closing(work))

    def failure_of(self, error: AirlockError) -> Failure:
        """Return how an error ends the command: without a gateway it is one of the configuration."""
        return Failure(str(error), EXIT_USAGE)

    async def close(self) -> None:
        """Close what the command has opened."""

    async def _closing(self, work: Coroutine[Any, Any, T]) -> T:
        try:
            return await work
        finally:
            await self.close()

    @contextlib.contextmanager
    def errors_end_it(self) -> Iterator[None]:
        """Turn the errors of a block into a message and an exit code."""
        try:
            yield
        except Failure as failure:
            self._end(failure)
        except KeyboardInterrupt:
            raise typer.Exit(EXIT_INTERRUPTED) from None
        except Exception as error:
            from gateway.errors import AirlockError

            if not isinstance(error, AirlockError):
                raise
            self._end(self.failure_of(error))

    def _end(self, failure: Failure) -> None:
        if self.as_json:
            print_json({"error": str(failure), **failure.details})
        else:
            err.print("error:", style="bold red", end=" ")
            err.print(str(failure))
        replaced = self.failure_code and failure.code in (EXIT_USAGE, EXIT_GATEWAY)
        raise typer.Exit(self.failure_code if replaced else failure.code) from None


@dataclass
class GatewayCli(Cli):
    """A command that asks a gateway."""

    address: Address = DEFAULT_ADDRESS
    key: Key = ""

    @functools.cached_property
    def airlock(self) -> Client:
        """The client, made when it is first needed: importing grpc takes a while."""
        from gateway.client import Client

        return Client(self.address, self.key)

    def failure_of(self, error: AirlockError) -> Failure:
        from gateway.errors import Misconfigured, Unavailable

        code = EXIT_USAGE if isinstance(error, Misconfigured) else EXIT_GATEWAY
        hint = ""
        if isinstance(error, Unavailable) and _no_gateway_there(error):
            hint = ". Is a gateway running there? `airlock serve` starts one"
        return Failure(f"{error}{hint}", code, _details(error))

    async def close(self) -> None:
        if "airlock" in self.__dict__:
            await self.airlock.aclose()


class Commands(typer.Typer):
    """A group of commands, made of functions and coroutine functions as the top of this module says."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(no_args_is_help=True, **settings)

    def command(self, name: str | None = None, **settings: Any) -> Callable[[F], F]:
        """Add a command, as Typer does."""
        add = super().command(name, **settings)

        def added(function: F) -> F:
            add(command(function))
            return function

        return added


def command(function: Callable[..., Any]) -> Callable[..., Any]:
    """Make a Typer command of a function whose first parameter is a kind of `Cli`; any other is one already."""
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


async def taken(items: AsyncIterator[T], limit: int) -> list[T]:
    """Return the first items, `limit` of them at most."""
    found: list[T] = []
    async for item in items:
        found.append(item)
        if len(found) == limit:
            break
    return found


def _options(group: type) -> list[Parameter]:
    """Return the fields of a dataclass as options."""
    hints = get_type_hints(group, include_extras=True)
    return [
        Parameter(one.name, Parameter.KEYWORD_ONLY, default=one.default, annotation=hints[one.name])
        for one in fields(group)
        if one.init
    ]


def _no_gateway_there(error: Unavailable) -> bool:
    """Return whether no connection came about, by what grpc says of it: a gateway that answers has words of its own."""
    return str(error).removeprefix("UNAVAILABLE: ").startswith(_NO_CONNECTION)


def _details(error: AirlockError) -> dict[str, str | float]:
    """Return what a program can tell errors apart by: the reason, and the details such as quota or approval_id."""
    from gateway.errors import Overloaded

    details: dict[str, str | float] = {"reason": error.reason}
    details |= {name: value for name, value in error.details.items() if name not in ("error", "reason")}
    if isinstance(error, Overloaded) and error.retry_after_s is not None:
        details["retry_after_s"] = error.retry_after_s
    return details
