"""Programs as agent frameworks run them: with a time limit of their own choice, and an exit code in any case."""

import errno
from collections.abc import Sequence
from typing import Any

from airlock import Client, ProgramResult, errors

OUTPUT_LIMIT_BYTES = 64 * 1024 * 1024
TIMED_OUT, NOT_ALLOWED, NOT_FOUND, SIGNALLED = 124, 126, 127, 128
"""Exit codes, as the command `timeout` and the shell have them; a signal's number is added to SIGNALLED."""


async def run_program(airlock: Client, argv: Sequence[str], timeout_s: float | None, **options: Any) -> ProgramResult:
    """Run a program for `timeout_s`, or for as long as the policy allows: frameworks have limits of their own."""
    options = {"output_limit_bytes": OUTPUT_LIMIT_BYTES, **options}
    try:
        return await airlock.run_program(argv, timeout_s=timeout_s, **options)
    except errors.InvalidArgument as error:
        if timeout_s is None or "timeout_ms" not in error.violations:
            raise
        return await airlock.run_program(argv, **options)


def exit_code(result: ProgramResult, program: str) -> int:
    """Return the code that a shell would have. Raises what the program did not do."""
    match result.outcome:
        case "exited" if result.exit_code is not None:
            return result.exit_code
        case "signalled" if result.signal is not None:
            return SIGNALLED + result.signal
        case "out_of_memory":
            return SIGNALLED + 9
        case "timed_out":
            return TIMED_OUT
        case "output_limit":
            raise errors.TooLarge(f"{program} wrote more than {result.output_bytes:,} bytes: have it write to a file")
        case "failed_to_start" if result.errno in (errno.ENOENT, errno.ENOTDIR):
            return NOT_FOUND
        case "failed_to_start" if result.errno == errno.EACCES:
            return NOT_ALLOWED
        case other:
            raise errors.Unavailable(f"{program}: {other}: {result.message or 'no more is known'}")


def explained(stderr: str, result: ProgramResult, program: str) -> str:
    """Return what a program wrote to stderr, with what else there is to say about its end."""
    if not result.message or result.outcome == "exited":
        return stderr
    begun = stderr if stderr.endswith("\n") or not stderr else f"{stderr}\n"
    return f"{begun}{program}: {result.message}\n"
