"""Builtins that change nothing but variables which change nothing about what later words run (variables.py)."""

from __future__ import annotations

import re
from collections.abc import Sequence

from gateway.policy.variables import may_assign
from gateway.policy.words import Word

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_ASSIGNED = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=")
_PLAIN_BUILTINS = frozenset({":", "[", "cd", "echo", "false", "printf", "pwd", "test", "true"})
_KEEPERS = frozenset({"break", "continue", "exit", "export", "set", "shift", "unset"})
_SET_FLAGS = re.compile(r"[-+][eux]+|[-+][eux]*o")


def does_nothing(words: Sequence[Word]) -> bool:
    """Return whether a command is a builtin of every shell that uses no file and prints nothing but its own words."""
    name = words[0].literal
    return (name in _PLAIN_BUILTINS or (name in _KEEPERS and keeps_meaning(words))) and all(
        word.one_word for word in words
    )


def keeps_meaning(words: Sequence[Word]) -> bool:
    """Return whether a builtin of the shell leaves the rest of the line what it is.

    Such a one sets harmless variables only, ends a loop or the script, or makes the script stop at errors.
    """
    name = words[0].literal
    arguments = words[1:]
    if name in {"break", "continue", "exit", "shift"}:
        return len(arguments) <= 1 and all(word.one_word and _is_number(word) for word in arguments)
    if name == "export":
        return bool(arguments) and all(_exports(word) for word in arguments)
    if name in {"pushd", "popd"}:
        return True
    if name == "unset":
        return bool(arguments) and all(_names(word) or _names_a_proxy(word) for word in arguments)
    if name == "read":
        return _reads(arguments)
    if name == "set":
        return _sets(arguments)
    return False


def _is_number(word: Word) -> bool:
    return word.literal is None or word.literal.isdigit()


def _names(word: Word) -> bool:
    return word.literal is not None and bool(_NAME.fullmatch(word.literal)) and may_assign(word.literal)


def _names_a_proxy(word: Word) -> bool:
    return word.literal is not None and bool(re.fullmatch(r"(https?|ftp|all|no)_proxy", word.literal.lower()))


def _exports(word: Word) -> bool:
    if not word.one_word:
        return False  # some shells split the value into more names
    found = _ASSIGNED.match(word.literal if word.literal is not None else word.prefix)
    value = word.literal[found.end() :] if found and word.literal is not None else None
    return may_assign(found.group(1), value) if found else _names(word)


def _reads(arguments: Sequence[Word]) -> bool:
    place = 0
    while place < len(arguments) and arguments[place].literal in {"-r", "-d"}:
        if arguments[place].literal == "-d":
            place += 1
            delimiter = arguments[place].literal if place < len(arguments) else None
            if delimiter is None or len(delimiter) > 1:
                return False
        place += 1
    return place < len(arguments) and all(_names(word) for word in arguments[place:])


def _sets(arguments: Sequence[Word]) -> bool:
    place = 0
    while place < len(arguments):
        flags = arguments[place].literal
        if flags is None or not _SET_FLAGS.fullmatch(flags):
            return False
        if flags.endswith("o"):
            place += 1
            if place == len(arguments) or arguments[place].literal not in {"pipefail", "errexit", "nounset", "xtrace"}:
                return False
        place += 1
    return bool(arguments)
