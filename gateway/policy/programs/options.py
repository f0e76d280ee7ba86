"""Reading a program's options as getopt_long does, and what each option's argument is to the program.

The options of a program are written as one text:

    -abc        flags                       -a#         digits are flags too (head -20)
    -n:         takes text                  -o:write    takes a file that it writes
    -i[]        text, attached or not at all
    --lines=    takes text                  --output=write
    --color[=]  text after "=" or none      --verbose   a flag

Roles: text (left empty), read, write, list; with `_below` for all that is in a directory; `host`; `names` for a file
with the names of files.
An option that is not written there could use any file.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache

from gateway.policy.programs.call import Call
from gateway.policy.programs.paths import leads_with_dash
from gateway.policy.words import Word

_OPTION = re.compile(r"(--?)([^:=\[]+)(:|=|\[=?\])?([a-z_]*)")

_GiveUp = Callable[[str], None]


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
        names = [name] if dashes == "--" else list(name.replace("#", "0123456789"))
        for each in names:
            known[dashes + each] = Option(takes, role)
    return Options(known)


def parsed_call(call: Call, options: str, *, runs: bool = False, strict: bool = False) -> Parsed:
    """Read a call's options and take in their arguments by their roles; `runs` and `strict` as in read_options()."""
    compiled = compile_options(options)
    parsed = read_options(call, compiled, call.words, runs=runs, strict=strict)
    take_values(call, compiled, parsed)
    return parsed


def take_values(call: Call, options: Options, parsed: Parsed) -> None:
    """Take in the arguments of options by their roles."""
    for name, value in parsed.given:
        if value is not None:
            call.file(value, options.known[name].role)


def after_text(operands: list[Word]) -> list[Word]:
    """Return the operands after the first one, which is text (a pattern, a script).

    Where the shell could put another number of words in its place, those may be files too.
    """
    return operands if any(not word.one_word for word in operands[:1]) else operands[1:]


def read_options(
    call: Call,
    options: Options,
    words: Sequence[Word],
    *,
    runs: bool = False,
    strict: bool = False,
    permute: bool = True,
) -> Parsed:
    """Take words apart. What is not known is passed over, and the call loses what it may use.

    `runs` says that an option of the program can run another one, so that what is not known refuses the call. With
    `strict` no word may turn out to be an option; else those of the table are what it could be. Without `permute`
    options end at the first operand.
    """
    give_up = call.refuse if runs else call.lose
    parsed = Parsed()
    position = 0
    while position < len(words):
        word = words[position]
        position += 1
        if word.kind != "literal" and _assigned(options, word) is not None:
            parsed.given.append((word.prefix.partition("=")[0], _assigned(options, word)))
            continue
        if word.literal == "--":
            break
        if word.literal is not None and word.text.startswith("-") and word.text != "-":
            read = _long if word.text.startswith("--") else _cluster
            position = read(give_up, options, parsed, words, position)
            continue
        if word.kind != "literal" and leads_with_dash(word):
            if runs or strict:
                give_up(f"{word.text} could become an option of {call.name}; write -- or ./ before it")
            for role in sorted(options.roles):
                call.unknown(role)
        parsed.operands.append(word)
        if not permute:
            break
    parsed.operands.extend(words[position:])
    return parsed


def _assigned(options: Options, word: Word) -> Word | None:
    """Return the value in `--name=$value`, None where it is not surely that."""
    name, equals, before = word.prefix.partition("=")
    option = options.known.get(name)
    if not equals or option is None or option.takes == "nothing" or not word.text.startswith(f"{name}="):
        return None
    if word.kind == "expansion" and not word.single:
        return None
    return replace(word, text=word.text[len(name) + 1 :], prefix=before)


def _long(give_up: _GiveUp, options: Options, parsed: Parsed, words: Sequence[Word], position: int) -> int:
    name, equals, value = words[position - 1].text.partition("=")
    option = options.known.get(name)
    if option is None or (option.takes == "nothing" and equals):
        give_up(f"the option {name} is not known here")
    elif option.takes == "word" and not equals:
        return _apart(give_up, parsed, name, words, position)
    else:
        parsed.given.append((name, Word(value) if equals else None))
    return position


def _cluster(give_up: _GiveUp, options: Options, parsed: Parsed, words: Sequence[Word], position: int) -> int:
    text = words[position - 1].text
    for place in range(1, len(text)):
        name = "-" + text[place]
        option = options.known.get(name)
        if option is None:
            give_up(f"the option {name} is not known here")
            return position
        rest = text[place + 1 :]
        if option.takes == "word" and not rest:
            return _apart(give_up, parsed, name, words, position)
        parsed.given.append((name, Word(rest) if rest and option.takes != "nothing" else None))
        if option.takes != "nothing":
            return position
    return position


def _apart(give_up: _GiveUp, parsed: Parsed, name: str, words: Sequence[Word], position: int) -> int:
    """Take the next word as an option's argument."""
    if position == len(words):
        give_up(f"the option {name} has no argument")
        return position
    value = words[position]
    parsed.given.append((name, value))
    if not value.one_word:
        # No word or several may stand there: then it shifts what follows, and is an operand itself.
        parsed.operands.append(value)
    return position + 1
