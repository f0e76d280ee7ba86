"""Logs asyncio's errors to stderr without `logging`, which saves 0.6 MiB in each sandbox.

Nothing here may fail: the loop calls it after a failure, when there may be no descriptor or memory left.
"""

import sys


class LoopLog:
    """The part of logging.Logger that asyncio uses. Prints warnings and errors only."""

    def isEnabledFor(self, _level: int) -> bool:  # noqa: N802 - logging's name
        return False

    def debug(self, *_arguments: object, **_options: object) -> None:
        pass  # like an unconfigured logger

    info = debug

    def warning(self, message: str, *arguments: object, exc_info: object = None) -> None:
        if isinstance(exc_info, tuple):
            exc_info = exc_info[1]
        with _Quiet():
            print("airlock daemon:", message % arguments if arguments else message, file=sys.stderr)
            if exc_info:
                _print_stack(exc_info if isinstance(exc_info, BaseException) else sys.exc_info()[1])

    error = critical = warning

    def exception(self, message: str, *arguments: object) -> None:
        self.warning(message, *arguments, exc_info=True)


def print_exc(*_arguments: object, **_options: object) -> None:
    """Print the exception being handled, with its stack, like traceback.print_exc but without source lines."""
    with _Quiet():
        _print_stack(sys.exc_info()[1])


def _print_stack(error: BaseException | None) -> None:
    if error is not None:
        sys.__excepthook__(type(error), error, error.__traceback__)


class _Quiet:
    """Suppresses exceptions, without loading contextlib."""

    def __enter__(self) -> None: ...

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> bool:
        return kind is not None and issubclass(kind, Exception)
