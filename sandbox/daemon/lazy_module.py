"""Keeps the daemon small: what its libraries import and it hardly ever uses is loaded when it is used.

asyncio and protobuf import some sixty modules for work that the daemon does not do: TLS, streams,
asyncio's own subprocesses, thread pools, logging, source lines in stack traces, the pure-Python protobuf runtime.
Together they would be 7 MiB, as much as all the rest. In place of each stands a module with the names that are asked
for while importing; any other name loads the real one, so what is never used costs nothing. Away for good are TLS,
without which asyncio works by design, and asyncio's subprocesses, for init starts programs. The names of its streams
are not in asyncio itself, only in asyncio.streams.

A module that is needed while a sandbox is under attack has no place here: there may be no descriptor to read it with.
"""

import sys
from collections.abc import Callable
from types import ModuleType

from sandbox.daemon.serving.loop_log import LoopLog, print_exc


class LazyModule(ModuleType):
    """A module that becomes the real one when a name is used that `known` does not have."""

    def __init__(self, name: str, known: dict[str, object]) -> None:
        super().__init__(name)
        vars(self).update(known)

    def __getattr__(self, name: str) -> object:
        # A `from module import ...` asks whether it is a package, for which `import module.part` looks in the real one.
        if name == "__path__" and self.__name__ not in _PACKAGES:
            raise AttributeError(name)
        return getattr(_real(self.__name__), name)


def install() -> None:
    """Call before anything else is imported, in the process that will be init and server."""
    sys.modules.setdefault("ssl", None)  # type: ignore[arg-type]
    for name, known in _KNOWN.items():
        if name not in sys.modules:
            sys.modules[name] = LazyModule(name, known)
            if name in _PARTS_OF_ASYNCIO:
                # asyncio takes all names of these parts into its own, and then looks at each part by its name.
                part = name.rpartition(".")[2]
                vars(sys.modules[name]).update({part: sys.modules[name], "__all__": (part, *known)})
    import concurrent  # an empty package

    vars(concurrent).setdefault("futures", sys.modules["concurrent.futures"])


def loaded_for_use() -> list[str]:
    """Return the names of modules that had a stand-in and were loaded all the same."""
    return [name for name in _KNOWN if not isinstance(sys.modules.get(name), LazyModule)]


def _real(name: str) -> ModuleType:
    stand_in = sys.modules.get(name)
    if isinstance(stand_in, LazyModule):
        del sys.modules[name]
        try:
            __import__(name)
        except BaseException:
            sys.modules[name] = stand_in  # the next use tries again
            raise
    return sys.modules[name]


def _function(module: str, name: str) -> Callable[..., object]:
    """Return a stand-in for a function, which other modules take over by its name."""

    def call(*arguments: object, **options: object) -> object:
        return getattr(_real(module), name)(*arguments, **options)

    return call


_PACKAGES = ("concurrent.futures", "logging")
_PARTS_OF_ASYNCIO = ("asyncio.streams", "asyncio.subprocess", "asyncio.timeouts")

# What stands in, with the names that it is asked for while others are imported. The values are the real ones' or, where
# only a class to derive from or an annotation is wanted, enough for that.
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
    # A search compiles patterns, for which `re` and its parser are needed.
    "sandbox.daemon.files.search": {},
    "subprocess": {"PIPE": -1, "STDOUT": -2, "DEVNULL": -3},
    "traceback": {"extract_stack": _function("traceback", "extract_stack"), "print_exc": print_exc},
    "typing": {"Any": object, "Protocol": type("Protocol", (), {}), "Self": object, "TYPE_CHECKING": False},
}
