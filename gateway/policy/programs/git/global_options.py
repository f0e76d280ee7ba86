"""The options of git itself, which stand before its subcommand: `git -C lib --no-pager diff` is a `git diff` in lib."""

from __future__ import annotations

import re
from dataclasses import replace

from gateway.policy.effects import NO_EFFECTS, Effects
from gateway.policy.programs.call import Call
from gateway.policy.programs.paths import absolute
from gateway.policy.shell_line import Directories, SimpleCommand
from gateway.policy.words import Opaque, Word

_FLAGS = frozenset(
    {"--no-pager", "-P", "--no-optional-locks", "--no-replace-objects", "--literal-pathspecs", "--glob-pathspecs",
     "--noglob-pathspecs"}
)  # fmt: skip
# For one command: settings that name no program, file or host, and those that turn a program off.
_SETTING = re.compile(
    r"(user\.(name|email)|init\.defaultbranch|pull\.(rebase|ff)|push\.(default|autosetupremote)|fetch\.prune"
    r"|color\.[a-z.]+|core\.(autocrlf|filemode|quotepath)|merge\.conflictstyle|rebase\.autostash|advice\.[a-z]+)(=.*)?"
    r"|core\.pager=(cat)?|core\.fsmonitor=false|core\.hookspath=/dev/null|(commit|tag)\.gpgsign=false",
    re.IGNORECASE | re.DOTALL,
)


def without_global_options(command: SimpleCommand) -> tuple[SimpleCommand, Effects]:
    """Return the command that begins with the subcommand, and which directories the options name.

    It is the command itself if some option is not one that changes little.
    """
    words = command.words
    call = Call("git", words[1:], command.cwd)
    place = 1
    while place < len(words) and words[place].text.startswith("-"):
        value = words[place + 1] if place + 1 < len(words) else None
        if words[place].literal in _FLAGS:
            place += 1
            continue
        # A value that may become several words brings a subcommand with it.
        if value is None or not value.one_word:
            return command, NO_EFFECTS
        if words[place].literal == "-C":
            try:
                call.file(value, "read_below", dash=False)
            except Opaque:  # more directories than are looked at
                return command, NO_EFFECTS
            call.directories = _moved(value, call.directories)
        elif words[place].literal != "-c" or _SETTING.fullmatch(value.literal or value.prefix) is None:
            return command, NO_EFFECTS
        place += 2
    if place == 1 or place == len(words):
        return command, NO_EFFECTS
    return replace(command, words=(words[0], *words[place:]), cwd=call.directories), call.effects()


def _moved(to: Word, cwd: Directories) -> Directories:
    paths = absolute(to.text, cwd) if to.literal is not None else (None,)
    known = tuple(path for path in paths if path is not None)
    return known if len(known) == len(paths) else None
