"""Keeps the daemon small: modules that its libraries import but rarely use are loaded on first use.

asyncio and protobuf import some sixty modules for features that the daemon does not use: TLS, streams, subprocesses,
thread pools, logging, source lines in stack traces, the pure-Python protobuf runtime. They would take 7 MiB, as much as
everything else. Each is replaced by a lazy module with the names that other modules import; any other name loads the
real module. TLS, which asyncio does not require, and asyncio's subprocesses are removed for good. The names of
asyncio.streams are not available in asyncio itself.

Modules that are needed while a sandbox is under attack must not be lazy: there may be no descriptor left to load them.
"""

import sys
from collections.abc import Callable
from types import ModuleType


class LoopLog:
    """The part of logging.Logger that asyncio uses. Prints warnings and errors to stderr.

    `logging` would take 0.6 MiB in each sandbox. Nothing here may fail: the loop calls it after a failure, when there
    may be no descriptor or memory left.
    """

    def isEnabledFor(self, _level: int) -> bool:  # noqa: N802 - logging's name
        return False

    def debug(self, *_arguments: object, **_options: object) -> None:
        pass  # like an unconfigured logger

    info = debug

    def warning(self, message: str, *arguments: object, exc_info: object = None) -> None:
        if isinstance(exc_info, tuple):
            exc_info = exc_info[1]
        try:
            print("airlock daemon:", message % arguments if arguments else message, file=sys.stderr)
            if exc_info:
                _print_stack(exc_info if isinstance(exc_info, BaseException) else sys.exc_info()[1])
        except Exception:  # noqa: S110 - nowhere to report it
            pass

    error = critical = warning

    def exception(self, message: str, *arguments: object) -> None:
        self.warning(message, *arguments, exc_info=True)


def print_exc(*_arguments: object, **_options: object) -> None:
    """Print the exception being handled, with its stack, like traceback.print_exc but without source lines."""
    try:
        _print_stack(sys.exc_info()[1])
    except Exception:  # noqa: S110 - nowhere to report it
        pass


def _print_stack(error: BaseException | None) -> None:
    if error is not None:
        sys.__excepthook__(type(error), error, error.__traceback__)


class LazyModule(ModuleType):
    """A module that loads the real one when a name is used that is not in `known`."""

    def __init__(self, name: str, known: dict[str, object]) -> None:
        super().__init__(name)
        vars(self).update(known)

    def __getattr__(self, name: str) -> object:
        # `from module import ...` tests whether it is a package; `import module.part` looks in the real one.
        if name == "__path__" and self.__name__ not in _PACKAGES:
            raise AttributeError(name)
        return getattr(_real(self.__name__), name)


def install() -> None:
    """Call before other imports, in the process that becomes init and server."""
    sys.modules.setdefault("ssl", None)  # type: ignore[arg-type]
    for name, known in _KNOWN.items():
        if name not in sys.modules:
            sys.modules[name] = LazyModule(name, known)
            if name in _PARTS_OF_ASYNCIO:
                # asyncio imports all names of these parts, and then accesses each part by its name.
                part = name.rpartition(".")[2]
                vars(sys.modules[name]).update({part: sys.modules[name], "__all__": (part, *known)})
    import concurrent  # an empty package

    vars(concurrent).setdefault("futures", sys.modules["concurrent.futures"])


def loaded_for_use() -> list[str]:
    """Return the names of the lazy modules that were loaded."""
    return [name for name in _KNOWN if not isinstance(sys.modules.get(name), LazyModule)]


def _real(name: str) -> ModuleType:
    lazy = sys.modules.get(name)
    if isinstance(lazy, LazyModule):
        del sys.modules[name]
        try:
            __import__(name)
        except BaseException:
            sys.modules[name] = lazy  # the next use tries again
            raise
    return sys.modules[name]


def _function(module: str, name: str) -> Callable[..., object]:
    """Return a lazy function, for modules that import it by name."""

    def call(*arguments: object, **options: object) -> object:
        return getattr(_real(module), name)(*arguments, **options)

    return call


_PACKAGES = ("concurrent.futures", "logging")
_PARTS_OF_ASYNCIO = ("asyncio.streams", "asyncio.subprocess", "asyncio.timeouts")

# The lazy modules with the names that are used during imports. The values are the real ones or, for base classes and
# annotations, sufficient substitutes.
_KNOWN: dict[str, dict[str, object]] = {
    "asyncio.base_subprocess": {"BaseSubprocessTransport": object},
    "asyncio.log": {"logger": LoopLog()},
    "asyncio.sslproto": {},
    "asyncio.staggered": {},
    "asyncio.streams": {},
    "asyncio.subprocess": {},
    "asyncio.timeouts": {
        "timeout": _function("asyncio.timeouts", "timeout"),
        "timeout_at": _function("asyncio.timeouts", "timeout_at"),
    },
    "concurrent.futures": {name: name for name in ("FIRST_COMPLETED", "FIRST_EXCEPTION", "ALL_COMPLETED")},
    "google.protobuf.descriptor_database": {},
    "google.protobuf.internal.python_message": {},  # the pure-Python runtime
    "google.protobuf.internal.well_known_types": {"WKTBASES": {}},  # Timestamp and the like; the channel has none
    "google.protobuf.text_encoding": {},
    "inspect": {},
    "linecache": {},
    "locale": {},
    "logging": {"DEBUG": 10},
    # Needs `re` and its parser.
    "sandbox.daemon.files.search": {},
    "subprocess": {"PIPE": -1, "STDOUT": -2, "DEVNULL": -3},
    "traceback": {"extract_stack": _function("traceback", "extract_stack"), "print_exc": print_exc},
    "typing": {"Any": object, "Protocol": type("Protocol", (), {}), "Self": object, "TYPE_CHECKING": False},
}
