"""The one place where a path that somebody wrote becomes the path that is judged and opened.

The work is lexical: nothing is looked up. Symbolic links are for the sandbox to refuse, which knows them.
"""

from __future__ import annotations

import posixpath

from agent.errors import InvalidPath

WORKSPACE = "/workspace"


def resolve(path: str, cwd: str = WORKSPACE) -> str:
    """Return the absolute, normalised POSIX path; a relative one starts at `cwd`.

    Raises InvalidPath for an empty path and for one that holds NUL.
    """
    if not path:
        raise InvalidPath("the path is empty; give an absolute path or one relative to " + cwd)
    if "\0" in path:
        raise InvalidPath("the path holds a NUL character, which no file name can")
    resolved = posixpath.normpath(posixpath.join(cwd, path))
    # POSIX lets exactly two leading slashes mean something else, and normpath keeps them; Linux reads them as one.
    return resolved[1:] if resolved.startswith("//") else resolved
