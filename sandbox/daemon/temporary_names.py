"""The names of files that are being written, at the top of the workspace, until they replace their targets."""

import os

_BEGIN, _END = ".airlock-", ".tmp"
_RANDOM_BYTES = 8
_HEX = "0123456789abcdef"


def new_temporary_name() -> str:
    """Return an unpredictable name: tool code could otherwise create it first, and make the write fail."""
    return f"{_BEGIN}{os.urandom(_RANDOM_BYTES).hex()}{_END}"


def is_temporary_name(name: str) -> bool:
    """Return whether a name is one of these; tool code may give it to a file of its own."""
    middle = name.removeprefix(_BEGIN).removesuffix(_END)
    return f"{_BEGIN}{middle}{_END}" == name and len(middle) == 2 * _RANDOM_BYTES and not middle.strip(_HEX)
