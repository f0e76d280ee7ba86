"""Reading a program's options as getopt_long does.

The options of a program are written as one text:

    -abc        flags                       -a#         digits are flags too (head -20)
    -n:         takes a word                -i[]        takes what is attached to it, or nothing
    --lines=    takes a word                --color[=]  takes what stands behind "=", or nothing
    --verbose   a flag

An option that is not written there could do anything.
"""

import re
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Literal

from gateway.policy.programs.call import Access, Call, leads_with_dash
from gateway.policy.words import Word

_OPTION = re.compile(r"(--?)([^:=\[]+)(:|=|\[=?\])?")

Takes = Literal["nothing", "word", "attached"]
"""What follows an option; `attached` is a word that is attached to it if there is one."""


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
def compile_options(text: str) -> dict[str, Takes]:
    """Return the options that a text describes, by their names with dashes. Raises ValueError for a malformed text."""
    known: dict[str, Takes] = {}
    for word in text.split():
        match = _OPTION.fullmatch(word)
        if match is None:
            raise ValueError(f"{word!r} describes no option")
        dashes, name, mark = match.groups()
        takes: Takes = "nothing" if mark is None else "word" if mark in (":", "=") else "attached"
        letters = [name] if dashes == "--" else name.replace("#", "0123456789")
        known |= {dashes + each: takes for each in letters}
    return known


def after_first(operands: list[Word]) -> tuple[list[Word], list[Word]]:
    """Return the first operand, which is text, and those after it; where none or several may stand there, that too."""
    first = operands[:1]
    return first, operands if any(not word.one_word for word in first) else operands[1:]


def read_options(
    call: Call, options: str, *kinds: Access, runs: bool = False, harmless: bool = False, permute: bool = True
) -> Parsed:
    """Take a call's words apart.

    What is not known, or may turn out to be an option, is passed over, and the call may use any file in these `kinds`
    of ways. `runs` says that an option of the program can run another one, so that it refuses the call; `harmless` that
    none names a file, so that a word may turn out to be any. Without `permute` options end at the first operand.
    """
    known = compile_options(options)
    give_up: Callable[[str], None] = call.refuse if runs else lambda why: call.lose(why, *kinds)
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
            if word.kind != "literal" and leads_with_dash(word) and not harmless:
                give_up(f"{word.text} could become an option of {call.name}; write -- or ./ before it")
            parsed.operands.append(word)
            if not permute:
                break
    parsed.operands.extend(words)
    return parsed


def _assigned(known: dict[str, Takes], word: Word) -> tuple[str, Word] | None:
    """Return the option and the value in `--name=$value`, None where it is not surely that."""
    name, equals, before = word.prefix.partition("=")
    if word.kind == "literal" or not equals or known.get(name, "nothing") == "nothing":
        return None
    if not word.text.startswith(f"{name}=") or (word.kind == "expansion" and not word.single):
        return None
    return name, replace(word, text=word.text[len(name) + 1 :], prefix=before)


def _take_options(
    text: str, words: deque[Word], known: dict[str, Takes], parsed: Parsed, give_up: Callable[[str], None]
) -> None:
    """Take in a word with one long option or several letters, and the argument that stands behind it."""
    for name, attached in _named(text, known):
        takes = known.get(name)
        if takes is None or (takes == "nothing" and attached is not None):
            give_up(f"the option {name} is not known here")
            return
        value = Word(attached) if attached is not None else None
        if takes == "word" and value is None:
            if not words:
                give_up(f"the option {name} has no argument")
                return
            value = words.popleft()
            if not value.one_word:
                # No word or several may stand there: then it shifts what follows, and is an operand itself.
                parsed.operands.append(value)
        parsed.given.append((name, value))


def _named(text: str, known: dict[str, Takes]) -> Iterator[tuple[str, str | None]]:
    """Yield the options in a word, each with the text that is attached to it."""
    if text.startswith("--"):
        name, equals, value = text.partition("=")
        yield name, value if equals else None
        return
    for place, letter in enumerate(text[1:], 2):
        name = f"-{letter}"
        if known.get(name, "nothing") != "nothing":
            yield name, text[place:] or None
            return
        yield name, None
