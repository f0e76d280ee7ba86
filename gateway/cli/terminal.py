"""The output of every subcommand, and how an error ends the process.

Exit codes: 0 success, 1 the command ran and its result is negative (a failed check, for example), 2 wrong usage or
configuration, 3 the gateway refused the request or does not answer, 4 the model's answer was cut off or is a refusal.
`airlock exec` and `airlock tool call --check` exit with the command's own code, or as timeout(1) and shells do: 124
timed out, 125 did not run or did not end by itself, 126 denied.
"""

import sys
from collections.abc import Mapping
from typing import NoReturn

from gateway.cli.safe_console import SafeConsole, safe_json

EXIT_BAD_NEWS = 1
EXIT_USAGE = 2
EXIT_GATEWAY = 3
EXIT_CUT_ANSWER = 4
EXIT_TIMED_OUT = 124
EXIT_NOT_RUN = 125
EXIT_DENIED = 126
EXIT_INTERRUPTED = 130

DEFAULT_ADDRESS = "127.0.0.1:7443"

out = SafeConsole(soft_wrap=True)
err = SafeConsole(stderr=True, soft_wrap=True)


class Failure(Exception):
    """Ends a command with a message and an exit code; --json also prints `details`."""

    def __init__(self, message: str, code: int, details: Mapping[str, str | float] | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.details = details or {}


def fail(message: str, code: int = EXIT_USAGE) -> NoReturn:
    """End the command with an error."""
    raise Failure(message, code)


def print_json(value: object) -> None:
    """Print a JSON document on one line; it may contain times and dataclasses."""
    sys.stdout.write(safe_json(value) + "\n")
    sys.stdout.flush()
