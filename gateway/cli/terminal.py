"""What every subcommand shares: where output goes, the connection options, and how an error ends the process.

Exit codes: 0 done, 1 done and the answer is bad news, 2 wrong usage or configuration, 3 the gateway refused or does
not answer, 4 the model's answer was cut or is a refusal. `airlock exec` and `airlock tool call --check` exit as
the command did, or as timeout(1) and shells do: 124 timed out, 125 not run or not ended by itself, 126 denied.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Coroutine, Mapping
from typing import TYPE_CHECKING, Annotated, Any, NoReturn, TypeVar

import typer

from gateway.cli.safe_console import SafeConsole, safe_json

if TYPE_CHECKING:
    from gateway.errors import AirlockError, Unavailable

EXIT_BAD_NEWS = 1
EXIT_USAGE = 2
EXIT_GATEWAY = 3
EXIT_CUT_ANSWER = 4
EXIT_TIMED_OUT = 124
EXIT_NOT_RUN = 125
EXIT_DENIED = 126
EXIT_INTERRUPTED = 130

Json = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]
Address = Annotated[
    str, typer.Option("--address", envvar="AIRLOCK_ADDRESS", help="HOST:PORT of the gateway.", show_default=True)
]
Key = Annotated[str, typer.Option("--key", envvar="AIRLOCK_API_KEY", help="API key.", show_default=False)]
DEFAULT_ADDRESS = "127.0.0.1:7443"

out = SafeConsole(soft_wrap=True)
err = SafeConsole(stderr=True, soft_wrap=True)
T = TypeVar("T")
# As grpc writes them: nothing listens there or answers, and the name stands for no address.
_NO_CONNECTION = ("failed to connect to all addresses", "errors resolving", "DNS resolution failed")


def print_json(value: object) -> None:
    """Print one JSON document on one line."""
    sys.stdout.write(safe_json(value) + "\n")
    sys.stdout.flush()


def fail(
    message: str, code: int, *, as_json: bool = False, details: Mapping[str, str | float] | None = None
) -> NoReturn:
    """End with one clear error; `details` are for programs."""
    if as_json:
        print_json({"error": message, **(details or {})})
    else:
        err.print("error:", style="bold red", end=" ")
        err.print(message, markup=False)
    raise typer.Exit(code)


def run_client(work: Coroutine[Any, Any, T], *, as_json: bool) -> T:
    """Run what talks to a gateway; its errors end the process."""
    from gateway.errors import AirlockError, Misconfigured, Unavailable

    try:
        return asyncio.run(work)
    except Unavailable as error:
        hint = ". Is a gateway running there? `airlock serve` starts one" if _nobody_there(error) else ""
        fail(f"{error}{hint}", EXIT_GATEWAY, as_json=as_json, details=error_details(error))
    except Misconfigured as error:
        fail(str(error), EXIT_USAGE, as_json=as_json, details=error_details(error))
    except AirlockError as error:
        fail(str(error), EXIT_GATEWAY, as_json=as_json, details=error_details(error))
    except KeyboardInterrupt:
        raise typer.Exit(130) from None


def _nobody_there(error: Unavailable) -> bool:
    """Return whether no connection came about, by what grpc says of it: a gateway that answers has words of its own."""
    return str(error).removeprefix("UNAVAILABLE: ").startswith(_NO_CONNECTION)


def error_details(error: AirlockError) -> dict[str, str | float]:
    """Return what a program can tell errors apart by: the reason, and the details such as quota or approval_id."""
    from gateway.errors import Overloaded

    details: dict[str, str | float] = {"reason": error.reason}
    details |= {name: value for name, value in error.details.items() if name not in ("error", "reason")}
    if isinstance(error, Overloaded) and error.retry_after_s is not None:
        details["retry_after_s"] = error.retry_after_s
    return details
