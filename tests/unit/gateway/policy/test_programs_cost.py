"""Reading what programs do takes time that grows as the line does, whatever is in it."""

from __future__ import annotations

import functools
from collections.abc import Callable

import pytest

from gateway.policy.parts import Programs, read_programs
from gateway.policy.programs import _PROGRAMS
from gateway.policy.programs.call import TOO_MANY
from gateway.policy.shell import LIMIT_BYTES, parse_line
from gateway.policy.shell_builtins import LIMIT_DIRECTORIES
from gateway.policy.shell_line import Directories, SimpleCommand
from gateway.policy.words import Word
from tests.cpu_time import costs_at_most, cpu_s
from tests.security.policy.strict_policy import STRICT

_MANY = 2900
_TIMES_PARSING = 25
_SPACE = LIMIT_BYTES - 200


def _words(*pieces: str) -> str:
    """As many numbered repetitions of some words as fit in a line; `#` is the number."""
    text, place, count = "", 0, 0
    while count + len(pieces) <= _MANY:
        more = "".join(f" {piece.replace('#', str(place))}" for piece in pieces)
        if len(text) + len(more) > _SPACE:
            break
        text, place, count = text + more, place + 1, count + len(pieces)
    return text


_OPERANDS = {
    "names": _words("f#"),
    "same": _words("f"),
    "globs": _words("f#*"),
    "deep": " " + "a/" * (_SPACE // 2),
    "brackets": " ][" + "[" * _SPACE,
    "stars": " .*" + "*a" * (_SPACE // 2),
    "variables": _words('"$f"'),
    "bare variables": _words("$f"),
    "directories": _words("-C", "d#"),
    "directories, then names": "".join(_words("-C", "d#")[:9000]) + _words("f#")[:9000],
    "targets, then names": "".join(_words("-t", "d#")[:9000]) + _words("f#")[:9000],
    "suffixes, then names": "".join(_words("-i.#")[:9000]) + _words("f#")[:9000],
    "outputs": _words("-o", "f#"),
    "output directories": _words("--output-dir", "d#")[:12_000] + _words("-O", "https://h/#")[:12_000],
    "long outputs": _words("--output=f#"),
    "letters": " -" + "a" * _SPACE,
    "other letters": " -" + "r" * _SPACE,
    "unknown": _words("-%#"),
    "modes": _words("-x"),
    "patterns": _words("-e", "x#"),
    "scripts": " '" + "a\\\n" * (_SPACE // 4) + "'",
    "prints": " '" + "print " * (_SPACE // 6) + "'",
    "quotes": " x '" + "[" * (_SPACE // 2) + '"' * 9999 + "`'",
    "brackets of SQL": " x 'select " + "a(" * (_SPACE // 2 - 9) + "'",
    "words of SQL": " x 'select " + "a" * (_SPACE - 40) + "'",
    "deletions": _words("-delete", "x#"),
    "starts, then deletions": _words("x#")[:9000] + _words("-delete")[:9000],
    "runs": " a b c d e f g h" + _words("-exec", "cat", "{}", "';'")[:20_000],
    "nested runs": " a b c d e f g h" + " -exec find a b c d e f g h -exec" * 6 + " cat {} " + _words("f#")[:9000],
    "scripts in runs": " a b c d e f g h -exec sh -c '" + "ls x;" * 250 + "# " + "x" * 29_000 + "' {} ';'",
    "URLs": _words("https://h#/a"),
    "copies": _words("h#:a"),
    "colons": " h" + ":" * _SPACE,
    "jumps": " -J " + "a," * (_SPACE // 2) + " h",
    "parts of a form": " -F 'a=@" + "b," * (_SPACE // 2) + "' https://h",
    "assignments": _words("A#=b"),
    "marks": " -I a echo " + "a" * (_SPACE - 40),
    "old style": " " + "f" * 9000 + _words("f#")[:9000],
    "tests": _words("-nt", "f#"),
    "wrappers": " sh -c 'sh -c \"" + "ls x;" * 250 + "\"'",
}  # fmt: skip


@functools.cache
def _words_of(shape: str) -> tuple[Word, ...]:
    line = f"echo{_OPERANDS[shape]}"
    assert len(line.encode()) <= LIMIT_BYTES
    return parse_line(line).commands[0].words[1:]


def _parse() -> None:
    parse_line(f"echo{_OPERANDS['names']}")


def _is_slow(work: Callable[[], object]) -> bool:
    return cpu_s(work) > 0.1 and not costs_at_most(_TIMES_PARSING, work, beside=_parse)


def _read(name: str, words: tuple[Word, ...], cwd: Directories) -> None:
    reading = Programs()
    reading.command(SimpleCommand((Word(name), *words), cwd), 0)


# Of programs that are described alike, one.
_NAMES = {_PROGRAMS.get(name): name for name in sorted({*_PROGRAMS, "unknown"})}


@pytest.mark.parametrize("name", _NAMES.values())
def test_the_worst_line_of_a_program_is_read_at_a_small_multiple_of_parsing_one(name: str) -> None:
    cwd = tuple(f"/d{place}" for place in range(LIMIT_DIRECTORIES))
    slow = [shape for shape in _OPERANDS if _is_slow(functools.partial(_read, name, _words_of(shape), cwd))]
    assert not slow


@pytest.mark.parametrize("name", ["cat", "cp", "diff", "tar cf a", "find", "sed -i x", "curl"])
def test_the_worst_line_is_judged_about_as_fast_as_any(name: str) -> None:
    lines = {shape: f"cd a || cd b; {name}{words}"[:LIMIT_BYTES] for shape, words in _OPERANDS.items()}
    judge = functools.partial(STRICT.judge, "execute")
    slow = [shape for shape, line in lines.items() if _is_slow(functools.partial(judge, {"command": line}))]
    assert not slow


def test_a_command_that_names_too_much_may_use_anything() -> None:
    for line in (f"cat{_words('f#')}", ";".join(f"cat {' '.join(f'{a}{b}' for a in range(50))}" for b in range(30))):
        uses = [use for one in read_programs(line).programs for use in one.uses]
        unknown = {use.access for use in uses if use.path is None and use.why == TOO_MANY}
        assert unknown == {"read", "list", "write"}


def test_a_command_that_names_many_files_is_understood() -> None:
    read = read_programs("cat " + " ".join(f"f{place}" for place in range(1000)))
    assert read.opaque is None
    assert all(use.path is not None for one in read.programs for use in one.uses)
