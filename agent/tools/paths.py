"""The one place where a path as written becomes the path that policy judges and tools open.

Paths are resolved lexically, without looking at files. The sandbox refuses symbolic links.
"""

import posixpath
from collections.abc import Sequence

from agent.errors import InvalidPath

WORKSPACE = "/workspace"


def resolve(path: str, cwd: str = WORKSPACE) -> str:
    """Return the absolute, normalised POSIX path; a relative one starts at `cwd`.

    Raises InvalidPath for an empty path and for one with NUL.
    """
    if not path:
        raise InvalidPath("the path is empty; give an absolute path or one relative to " + cwd)
    if "\0" in path:
        raise InvalidPath("the path contains a NUL character, which is not allowed")
    resolved = posixpath.normpath(posixpath.join(cwd, path))
    # POSIX lets exactly two leading slashes mean something else, and normpath keeps them; Linux reads them as one.
    return resolved[1:] if resolved.startswith("//") else resolved


def resolved(paths: Sequence[str]) -> tuple[str, ...]:
    """Return the paths resolved, each once. Raises InvalidPath, and TypeError for a string instead of a list."""
    if isinstance(paths, str):  # its letters would be the paths
        raise TypeError(f"paths is one string, {paths!r}: pass a list, as in [{paths!r}]")
    return tuple(dict.fromkeys(resolve(path) for path in paths))
