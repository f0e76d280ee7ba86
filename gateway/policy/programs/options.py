"""Reading a program's options as getopt_long does, and what each option's argument is to the program.

The options of a program are written as one text:

    -abc        flags                       -a#         digits are flags too (head -20)
    -n:         takes text                  -o:write    takes a file that it writes
    -i[]        text, attached or not at all
    --lines=    takes text                  --output=write
    --color[=]  text after "=" or none      --verbose   a flag

Roles: text (left empty), read, write, list; with `_below` for all that is in a directory; `names` for a file with the
names of files. An option that is not written there could use any file.
"""

import re
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cache
from typing import NamedTuple

from gateway.policy.programs.call import Call
from gateway.policy.programs.paths import leads_with_dash
from gateway.policy.words import Word

_OPTION = re.compile(r"(--?)([^:=\[]+)(:|=|\[=?\])?([a-z_]*)")


class Option(NamedTuple):
    """What follows an option: `takes` is nothing, a word, or a word that is attached to it if there is one."""

    takes: str
    role: str


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
def compile_options(text: str) -> dict[str, Option]:
    """Return the options that a text describes, by their names with dashes. Raises ValueError for a malformed text."""
    known: dict[str, Option] = {}
    for word in text.split():
        match = _OPTION.fullmatch(word)
        if match is None:
            raise ValueError(f"{word!r} describes no option")
        dashes, name, mark, role = match.groups()
        takes = {None: "nothing", ":": "word", "=": "word"}.get(mark, "attached")
        letters = [name] if dashes == "--" else name.replace("#", "0123456789")
        known |= {dashes + each: Option(takes, role) for each in letters}
    return known


def after_text(operands: list[Word]) -> list[Word]:
    """Return the operands after the first one, which is text (a pattern, a script).

    Where the shell could put another number of words in its place, those may be files too.
    """
    return operands if any(not word.one_word for word in operands[:1]) else operands[1:]


def read_options(call: Call, options: str, *, runs: bool = False, strict: bool = False, permute: bool = True) -> Parsed:
    """Take a call's words apart, and take in the arguments of options by their roles.

    What is not known is passed over, and the call loses what it may use. `runs` says that an option of the program can
    run another one, so that what is not known refuses the call. With `strict` no word may turn out to be an option;
    else those of the table are what it could be. Without `permute` options end at the first operand.
    """
    known = compile_options(options)
    give_up = call.refuse if runs else call.lose
    roles = sorted({option.role for option in known.values()})
    parsed = Parsed()
    words = deque(call.words)
    while words:
        word = words.popleft()
        if (assigned := _assigned(known, word)) is not None:
            parsed.given.append(assigned)
        elif word.literal == "--":
            break
        elif word.literal is not None and word.text.startswith("-") and word.text != "-":
            _take_options(word.text, words, known, parsed, give_up)
        else:
            if word.kind != "literal" and leads_with_dash(word):
                if runs or strict:
                    give_up(f"{word.text} could become an option of {call.name}; write -- or ./ before it")
                for role in roles:
                    call.unknown(role)
            parsed.operands.append(word)
            if not permute:
                break
    parsed.operands.extend(words)
    for name, value in parsed.given:
        if value is not None:
            call.file(value, known[name].role)
    return parsed


def _assigned(known: dict[str, Option], word: Word) -> tuple[str, Word] | None:
    """Return the option and the value in `--name=$value`, None where it is not surely that."""
    name, equals, before = word.prefix.partition("=")
    option = known.get(name)
    if word.kind == "literal" or not equals or option is None or option.takes == "nothing":
        return None
    if not word.text.startswith(f"{name}=") or (word.kind == "expansion" and not word.single):
        return None
    return name, replace(word, text=word.text[len(name) + 1 :], prefix=before)


def _take_options(
    text: str, words: deque[Word], known: dict[str, Option], parsed: Parsed, give_up: Callable[[str], None]
) -> None:
    """Take in a word with one long option or several letters, and the argument that stands behind it."""
    for name, attached in _named(text, known):
        option = known.get(name)
        if option is None or (option.takes == "nothing" and attached is not None):
            give_up(f"the option {name} is not known here")
            return
        value = Word(attached) if attached is not None else None
        if option.takes == "word" and value is None:
            if not words:
                give_up(f"the option {name} has no argument")
                return
            value = words.popleft()
            if not value.one_word:
                # No word or several may stand there: then it shifts what follows, and is an operand itself.
                parsed.operands.append(value)
        parsed.given.append((name, value))


def _named(text: str, known: dict[str, Option]) -> Iterator[tuple[str, str | None]]:
    """Yield the options in a word, each with the text that is attached to it."""
    if text.startswith("--"):
        name, equals, value = text.partition("=")
        yield name, value if equals else None
        return
    for place, letter in enumerate(text[1:], 2):
        name = f"-{letter}"
        if name in known and known[name].takes != "nothing":
            yield name, text[place:] or None
            return
        yield name, None
