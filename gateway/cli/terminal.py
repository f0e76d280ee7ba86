"""What every subcommand shares: where output goes, and how an error ends the process.

Exit codes: 0 done, 1 done and the answer is bad news, 2 wrong usage or configuration, 3 the gateway refused or does
not answer, 4 the model's answer was cut or is a refusal. `airlock exec` and `airlock tool call --check` exit as
the command did, or as timeout(1) and shells do: 124 timed out, 125 not run or not ended by itself, 126 denied.
"""

from __future__ import annotations

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
    """Ends a command with a message and an exit code; `details` are for programs."""

    def __init__(self, message: str, code: int, details: Mapping[str, str | float] | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.details = details or {}


def fail(message: str, code: int = EXIT_USAGE) -> NoReturn:
    """End the command with one clear error."""
    raise Failure(message, code)


def print_json(value: object) -> None:
    """Print one JSON document on one line; times and dataclasses are understood."""
    sys.stdout.write(safe_json(value) + "\n")
    sys.stdout.flush()
