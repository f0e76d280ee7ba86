"""Which files programs may use, enforced by the kernel in the sandbox (Landlock)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class FileRules:
    """Absolute paths in the sandbox, each for itself and all below it; no symbolic link in one is followed.

    The image's own directories are readable without a rule. `unreadable` and `unwritable` are what is forbidden below
    something `readable` or `writable`; what is unreadable cannot be written either.
    """

    readable: tuple[str, ...] = ()
    writable: tuple[str, ...] = ()
    unreadable: tuple[str, ...] = ()
    unwritable: tuple[str, ...] = ()
