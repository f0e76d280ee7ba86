"""C library calls that Python lacks. Uses _ctypes directly: ctypes costs several times as much memory."""

from collections.abc import Callable


def libc() -> Callable[..., int] | None:
    """Return a function that calls a C function by name, with ints and bytes; None if this Python cannot.

    It returns the C function's int; errno is lost.
    """
    try:
        import _ctypes
    except ImportError:
        return None
    library = _ctypes.dlopen(None, 0)  # type: ignore[arg-type]  # None: what this process has loaded

    def call(name: str, *arguments: int | bytes) -> int:
        return int(_ctypes.call_function(_ctypes.dlsym(library, name), arguments))

    return call
