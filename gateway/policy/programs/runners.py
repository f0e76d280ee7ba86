"""Programs with which a package manager or a build tool runs others."""

from __future__ import annotations

import re

from gateway.policy.words import Opaque, Word

RUNNERS = {
    **dict.fromkeys(("bunx", "npx", "pnpx", "uvx"), ""),
    **dict.fromkeys(("conda", "hatch", "mamba", "pdm", "pipenv", "pipx", "poetry", "rye"), "run"),
    **dict.fromkeys(("bundle", "pyenv", "rbenv"), "exec"),
    **dict.fromkeys(("npm", "mise"), "exec x"),
    **dict.fromkeys(("pnpm", "yarn"), "exec dlx"),
    "bun": "x",
    "uv": "run tool",
}
"""The subcommands that run what follows; none where the program always does."""
_FLAGS = frozenset({"--", "-y", "--yes", "-q", "--quiet", "--frozen", "--locked", "--no-sync", "--offline"})
_STREAM = re.compile(r"-|/+(dev|proc)/.*", re.DOTALL)


def is_stream(path: str) -> bool:
    """Return whether a script of this name may be what the program reads as its input."""
    return _STREAM.fullmatch(path) is not None


def runs_after(words: tuple[Word, ...]) -> tuple[Word, ...] | None:
    """Return what `uv run pytest` runs, None where it runs nothing that is named. Raises Opaque."""
    name = words[0].text.rpartition("/")[2]
    verbs = RUNNERS[name].split()
    place = 1
    if verbs:
        verb = words[1] if len(words) > 1 else Word("")
        if verb.literal is None or verb.text.startswith("-"):
            if any(word.literal is None or word.text in verbs for word in words[1:]):
                raise Opaque(f"{name} may run another program; write its subcommand first, as in `{name} {verbs[0]}`")
            return None
        if verb.text not in verbs or [word.text for word in words[1:3]] == ["tool", "install"]:
            return None
        place = 3 if verb.text == "tool" else 2
        if verb.text == "tool" and (len(words) < 3 or words[2].literal != "run"):
            raise Opaque(f"{name} tool is used in a form that is not understood")
    while place < len(words) and words[place].literal in _FLAGS:
        place += 1
    if place == len(words):
        raise Opaque(f"{name} may run what it reads")
    return words[place:]
