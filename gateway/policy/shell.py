"""A shell command line, taken apart: simple commands and redirects, or the reason why it is opaque.

The tool runs /bin/sh, and no reader of shell is trusted to agree with it. So two read the line, our grammar and
tree-sitter-bash, and it is understood only where both see the same words in the same commands and the same redirects.

An opaque line still lists the commands that were seen in it, so that deny rules can match them. They are no promise.
"""

import re
from itertools import dropwhile

from gateway.policy.shell_grammar import LIMIT_COMMANDS, read_line
from gateway.policy.shell_line import START, Directories, Redirect, ShellLine, SimpleCommand, Span
from gateway.policy.shell_second import look_for_units, read_units
from gateway.policy.words import Opaque, Word, read_word

__all__ = ["LIMIT_BYTES", "LIMIT_COMMANDS", "Redirect", "ShellLine", "SimpleCommand", "parse_line"]

LIMIT_BYTES = 32 * 1024

_DISAGREE = "the shell may split it in another way than it is read here"
_FILES = {">": True, ">>": True, "<": False, ">|": True, "&>": True, "&>>": True}


def parse_line(command: str, cwd: Directories = START) -> ShellLine:
    """Take apart a command line that starts in `cwd`. Never raises: what is not understood is opaque."""
    reason = _unreadable(command)
    if reason is not None:
        return ShellLine(opaque=reason)
    source = command.encode()
    try:
        reading = read_line(source.decode("latin-1"), cwd)
    except Opaque as opaque:
        return _seen(source, str(opaque))
    units, complete = read_units(_without(source, reading.documents))
    line = reading.line
    if not complete or sorted(reading.units) != sorted(units):
        seen = _seen(source, _DISAGREE)
        return ShellLine((*line.commands, *seen.commands), (*line.redirects, *seen.redirects), _DISAGREE)
    if len(line.commands) + len(line.redirects) > LIMIT_COMMANDS:
        return ShellLine(line.commands[:LIMIT_COMMANDS], (), f"it has more than {LIMIT_COMMANDS} commands")
    return line


def _unreadable(command: str) -> str | None:
    """Return why a line must not even be parsed."""
    try:
        size_bytes = len(command.encode())
    except UnicodeEncodeError:
        return "it is not valid text"
    if size_bytes > LIMIT_BYTES:
        return f"it is longer than {LIMIT_BYTES} bytes"
    if not command.strip(" \t\n"):
        return "it is empty"
    if command.startswith(("-", "+")):
        return "it starts with - or +, which the shell takes for options of its own"
    for character in command:
        if not (character.isprintable() or character in "\t\n"):
            return f"it contains the character U+{ord(character):04X}, which shells do not all read alike"
    return None


def _without(source: bytes, documents: tuple[Span, ...]) -> bytes:
    """Return the line with blanks for its here-documents: our reading of those is checked against real shells only."""
    blanked = bytearray(source)
    for start, end in documents:
        blanked[start:end] = re.sub(rb"[^\n]", b" ", blanked[start:end])
    return bytes(blanked)


def _seen(source: bytes, reason: str) -> ShellLine:
    """Return an opaque line with what tree-sitter-bash sees in it."""
    commands: list[SimpleCommand] = []
    redirects: list[Redirect] = []
    for kind, texts in look_for_units(source):
        if len(commands) + len(redirects) >= LIMIT_COMMANDS:
            break
        words = tuple(map(_word, texts))
        if kind == "command":
            words = tuple(dropwhile(_is_assignment, words))
            commands += [SimpleCommand(words, None)] if words else []
        elif kind == "redirect" and texts[0] in _FILES:
            redirects.append(Redirect(words[1].literal, _FILES[texts[0]], None))
    return ShellLine(tuple(commands), tuple(redirects), reason)


def _is_assignment(word: Word) -> bool:
    name, equals, _ = word.text.partition("=")
    return bool(equals) and name.removesuffix("+").isidentifier()


def _word(text: str) -> Word:
    try:
        return read_word(text)
    except Opaque:
        return Word(text, "unknown")
