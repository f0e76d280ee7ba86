"""Programs with which a package manager or a build tool runs others, and make, whose variables are commands."""

from __future__ import annotations

import re
from dataclasses import replace

from gateway.policy.programs.call import Call
from gateway.policy.programs.options import compile_options, read_options
from gateway.policy.shell_line import SimpleCommand
from gateway.policy.variables import may_assign
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
MAKE = compile_options(
    "-bBdehikLmnNpqrRsStvw -C:list -f:read -I:list -j[] -l[] -o: -O[] -W: --always-make --directory=list"
    " --dry-run --file=read --ignore-errors --include-dir=list --jobs[=] --just-print --keep-going"
    " --load-average[=] --makefile=read --no-builtin-rules --no-print-directory --output-sync[=]"
    " --print-data-base --print-directory --question --quiet --recon --silent --touch --trace --version"
    " --warn-undefined-variables"
)
_PLAIN_VALUE = re.compile(r"[A-Za-z0-9_.,:/@%+-]*")
_STREAM = re.compile(r"-|/+(dev|proc)/.*", re.DOTALL)


def is_stream(path: str) -> bool:
    """Return whether a script of this name may be what the program reads as its input."""
    return _STREAM.fullmatch(path) is not None


def runs_after(command: SimpleCommand) -> SimpleCommand | None:
    """Return what `uv run pytest` runs, None where it runs nothing that is named. Raises Opaque."""
    words = command.words
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
    return replace(command, words=words[place:])


def check_make(command: SimpleCommand) -> None:
    """Raise Opaque where make runs what stands in the line or what it reads, and not only what a makefile says."""
    call = Call(command.words[0].text, command.words[1:], command.cwd)
    parsed = read_options(call, MAKE, call.words, runs=True)
    if (opaque := call.effects().opaque) is not None:
        raise Opaque(opaque)
    for value in parsed.values("-f", "--file", "--makefile"):
        if value.literal is None or is_stream(value.text):
            raise Opaque(f"{call.name} takes its makefile from {value.text}, which may be its input")
    for word in parsed.operands:
        name, equals, value_text = word.text.partition("=")
        known = name.isupper() and may_assign(name) and _PLAIN_VALUE.fullmatch(value_text)
        if word.literal is None or (equals and not known):
            raise Opaque(f"{call.name} with {word.text} may run what the word says; set the variable in the makefile")
