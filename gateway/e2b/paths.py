"""Paths as E2B's SDKs write them: the home directory is /home/user, which here is the workspace."""

import posixpath
from dataclasses import dataclass

from agent.tools.paths import WORKSPACE
from gateway.errors import InvalidArgument

HOME = "/home/user"


@dataclass(frozen=True)
class SandboxPath:
    """A path in a sandbox: `inside` is where it is, and `shown` how the caller calls it."""

    inside: str
    shown: str

    def below(self, name: str) -> "SandboxPath":
        """Return the path of an entry below this directory."""
        return SandboxPath(posixpath.join(self.inside, name), posixpath.join(self.shown, name))

    @property
    def name(self) -> str:
        return posixpath.basename(self.inside)

    @property
    def parent(self) -> str:
        return posixpath.dirname(self.inside)


def path_of(asked: str) -> SandboxPath:
    """Return the path that a caller means: an absolute one, or one relative to the home directory.

    A caller that says /workspace is answered so; other paths in the workspace are shown below /home/user.
    """
    if "\0" in asked:
        raise InvalidArgument("path: it must not have a NUL")
    if asked == "~" or asked.startswith("~/"):
        asked = asked[2:]
    shown = posixpath.normpath(posixpath.join(HOME, asked))
    if shown == HOME or shown.startswith(f"{HOME}/"):
        return SandboxPath(WORKSPACE + shown.removeprefix(HOME), shown)
    return SandboxPath(shown, shown)
