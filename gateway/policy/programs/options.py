"""Reading a program's options as getopt_long does, and what each option's argument is to the program.

The options of a program are written as one text:

    -abc        flags                       -#          digits as flags (head -20)
    -n:         takes text                  -o:write    takes a file that it writes
    -i[]        text, attached or not at all
    --lines=    takes text                  --output=write
    --color[=]  text after "=" or none      --verbose   a flag

Roles: text (left empty), read, write, list; with `_below` for all that is in a directory; `host`.
An option that is not written there could do anything: the line is opaque.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cache

from gateway.policy.programs.call import Call
from gateway.policy.programs.paths import leads_with_dash
from gateway.policy.words import Word

_OPTION = re.compile(r"(--?)([^:=\[]+)(:|=|\[=?\])?([a-z_]*)")


@dataclass(frozen=True)
class Option:
    """What follows an option: `takes` is nothing, a word, or a word that is attached to it if there is one."""

    takes: str = "nothing"
    role: str = ""


@dataclass(frozen=True)
class Options:
    """The options of one program, by their names with dashes."""

    known: dict[str, Option]

    @property
    def roles(self) -> frozenset[str]:
        """What an option's argument can be."""
        return frozenset(option.role for option in self.known.values() if option.role)


@dataclass
class Parsed:
    """What getopt would give: options with their arguments, in order, and the operands."""

    given: list[tuple[str, Word | None]] = field(default_factory=list)
    operands: list[Word] = field(default_factory=list)

    def has(self, *names: str) -> bool:
        """Return whether one of these options is given."""
        return any(name in names for name, _ in self.given)

    def values(self, *names: str) -> list[Word]:
        """Return the arguments of these options."""
        return [value for name, value in self.given if name in names and value is not None]


@cache
def compile_options(text: str) -> Options:
    """Return the options that a text describes. Raises ValueError for a text that is not well-formed."""
    known: dict[str, Option] = {}
    for word in text.split():
        match = _OPTION.fullmatch(word)
        if match is None:
            raise ValueError(f"{word!r} describes no option")
        dashes, name, mark, role = match.groups()
        takes = {None: "nothing", ":": "word", "=": "word"}.get(mark, "attached")
        names = [name] if dashes == "--" else ["0123456789"[i] for i in range(10)] if name == "#" else list(name)
        for each in names:
            known[dashes + each] = Option(takes, role)
    return Options(known)


def read_options(
    call: Call, options: Options, words: Sequence[Word], *, runs: bool = False, permute: bool = True
) -> Parsed:
    """Take words apart. What is not known refuses the call, and is then passed over.

    `runs` says that some option of the program, known or not, can run another one. Without `permute` options end at the
    first operand.
    """
    parsed = Parsed()
    position = 0
    while position < len(words):
        word = words[position]
        position += 1
        if word.kind != "literal" and _assigned(options, word) is not None:
            parsed.given.append((word.prefix.partition("=")[0], _assigned(options, word)))
        elif word.kind != "literal":
            if leads_with_dash(word):
                might_be_option(call, options, word, runs=runs)
            parsed.operands.append(word)
            if not permute:
                break
        elif word.text == "--":
            break
        elif word.text.startswith("--"):
            position = _long(call, options, parsed, words, position)
        elif word.text.startswith("-") and word.text != "-":
            position = _cluster(call, options, parsed, words, position)
        else:
            parsed.operands.append(word)
            if not permute:
                break
    parsed.operands.extend(words[position:])
    return parsed


def might_be_option(call: Call, options: Options, word: Word, *, runs: bool) -> None:
    """Take in a word that the shell may expand to an option."""
    if runs:
        call.refuse(f"{word.text} could become an option of {call.name}; write -- or ./ before it")
    for role in sorted(options.roles):
        call.unknown(role)


def _assigned(options: Options, word: Word) -> Word | None:
    """Return the value in `--name=$value`, None where it is not surely that."""
    name, equals, before = word.prefix.partition("=")
    option = options.known.get(name)
    if not equals or option is None or option.takes == "nothing" or not word.text.startswith(f"{name}="):
        return None
    if word.kind == "expansion" and not word.single:
        return None
    return replace(word, text=word.text[len(name) + 1 :], prefix=before)


def _long(call: Call, options: Options, parsed: Parsed, words: Sequence[Word], position: int) -> int:
    text = words[position - 1].text
    name, equals, value = text.partition("=")
    option = options.known.get(name)
    if option is None or (option.takes == "nothing" and equals):
        call.refuse(f"{call.name} is used with {name}, which is not known here")
        if equals:
            call.file(Word(value), "read")
        return position
    if option.takes == "word" and not equals:
        return _apart(call, parsed, name, words, position)
    parsed.given.append((name, Word(value) if equals else None))
    return position


def _cluster(call: Call, options: Options, parsed: Parsed, words: Sequence[Word], position: int) -> int:
    text = words[position - 1].text
    for place in range(1, len(text)):
        name = "-" + text[place]
        option = options.known.get(name)
        if option is not None and option.takes == "nothing":
            parsed.given.append((name, None))
            continue
        rest = text[place + 1 :]
        if option is None:
            call.refuse(f"{call.name} is used with {name}, which is not known here")
            if rest:
                call.file(Word(rest), "read")
            return position
        if option.takes == "word" and not rest:
            return _apart(call, parsed, name, words, position)
        parsed.given.append((name, Word(rest) if rest else None))
        return position
    return position


def _apart(call: Call, parsed: Parsed, name: str, words: Sequence[Word], position: int) -> int:
    """Take the next word as an option's argument."""
    if position == len(words):
        call.refuse(f"{call.name} {name} has no argument")
        return position
    value = words[position]
    parsed.given.append((name, value))
    if not value.one_word:
        # No word or several may stand there: then it shifts what follows, and is an operand itself.
        parsed.operands.append(value)
    return position + 1
