"""Which files programs may use, enforced by the kernel in the sandbox (Landlock)."""

from dataclasses import dataclass

FILE_RULES_LANDLOCK_VERSION = 3
"""The version of Landlock that file rules need: Linux 6.2, which refuses to cut files, too."""


@dataclass(frozen=True)
class FileRules:
    """Absolute paths in the sandbox, each for itself and all below it; no symbolic link in one is followed.

    The image's own directories are readable without a rule. `unreadable` and `unwritable` are what is forbidden below
    something `readable` or `writable`; what is unreadable cannot be written either. `readable_files` and
    `writable_files` are single files: commands cannot create, rename or remove them. `programs` are the names and paths
    of what may be executed, with the shell, the interpreters and loaders they need; None is whatever is readable.
    """

    readable: tuple[str, ...] = ()
    writable: tuple[str, ...] = ()
    unreadable: tuple[str, ...] = ()
    unwritable: tuple[str, ...] = ()
    readable_files: tuple[str, ...] = ()
    writable_files: tuple[str, ...] = ()
    programs: tuple[str, ...] | None = None
