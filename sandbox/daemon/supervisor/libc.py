"""Calls of the C library that Python has no name for. Not ctypes, which costs several times its compiled half."""

from collections.abc import Callable


def libc() -> Callable[..., int] | None:
    """Return a way to call a function by name with numbers and bytes, None where this Python has none.

    It returns the function's int; errno is not kept.
    """
    try:
        import _ctypes
    except ImportError:
        return None
    library = _ctypes.dlopen(None, 0)  # type: ignore[arg-type]  # None: what this process has loaded

    def call(name: str, *arguments: int | bytes) -> int:
        return int(_ctypes.call_function(_ctypes.dlsym(library, name), arguments))

    return call
