"""Whatever the policy claims to understand, dash, bash and busybox must have run exactly so."""

from __future__ import annotations

import itertools
import os
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from gateway.policy.shell import parse_line
from tests.examples import examples
from tests.security.policy.real_shell import (
    ALL_FAIL,
    ALL_SUCCEED,
    APPLETS,
    SHELLS,
    TAME,
    Place,
    disagreements,
    matches,
    trespasses,
)
from tests.security.policy.shell_lines import Lines

SEED = 1  # the same lines every time; other seeds are for long runs
RUNS = 2200

# Pieces that shells have opinions about, beside plain words.
PIECES = [
    *[
        "a",
        "b",
        "cmd",
        "1",
        "2",
        "-30",
        "x=y",
        "A=",
        "if",
        "then",
        "fi",
        "in",
        "do",
        "time",
        "function",
        "case",
        "esac",
    ],
    *[" ", " ", " ", " ", "\t", "\n", "\n", "\r", "\f", "\u00a0", "\\\n", ";", "&&", "||", "|", "&", "|&", ";;", "!"],
    *[">", ">>", "<", "2>", "2>&1", ">&2", "1>&2", ">&", "&>", "<<", "<<<", "<>", ">|", "10>", "/dev/null", "<&-"],
    *[
        "'",
        '"',
        "''",
        '""',
        "' '",
        '" "',
        "'a b'",
        '"a b"',
        '"$"',
        '"\\$"',
        '"\\a"',
        '"\\\\"',
        "'\\'",
        "'\n'",
        "\\",
        "\\ ",
    ],
    *[
        "\\;",
        "\\'",
        "\\\\",
        "$",
        "$x",
        "${x}",
        "$(",
        ")",
        "(",
        "`",
        "{",
        "}",
        "{}",
        "{a,b}",
        "{1..2}",
        "*",
        "?",
        "[",
        "]",
    ],
    *[
        "~",
        "a~",
        "#",
        "# c",
        " # c\n",
        "a#",
        "%",
        "@",
        "+",
        ",",
        "^",
        "=",
        ":",
        "-",
        ".",
        "é",
        "'é'",
        '"日本"',
        "$'a'",
        '$"a"',
    ],
]
LINES = st.lists(st.sampled_from(PIECES), min_size=1, max_size=12).map("".join)

# Lines nearer to what is understood, so that most of the fuzzing reaches a real shell.
WORDS = st.lists(
    st.sampled_from(
        [
            *["a", "b", "1", "-x", "=", "@", "*", "!", "]", ":", ",", "^", "%", "+", "-", ".", "{}", "x~", "x#"],
            *[
                "'a b'",
                '"a b"',
                "''",
                '"a\\"b"',
                '"\\n"',
                "'\\'",
                "\\ ",
                "\\;",
                "\\~",
                "']'",
                '"#"',
                "'!'",
                '"!"',
                '"$"',
            ],
            *["'é'", "'é\u0081'", '"日本"', "'\n'", '"\n"', "'\t'"],
        ]
    ),
    min_size=1,
    max_size=3,
).map("".join)
PARTS = st.one_of(
    WORDS,
    WORDS,
    WORDS,
    st.sampled_from(
        [">x", "> x", ">>x", "2>x", "2>&1", ">&2", "</dev/null", "2> /dev/null", ">'x y'", "1>y", "&>x", "3>x"]
    ),
)
BLANKS = st.sampled_from([" ", " ", " ", "\t", "  ", "", "\n", "\\\n"])
OPERATORS = st.sampled_from(
    [";", " ; ", "&&", " && ", " || ", "|", " | ", "\n", " \n\n ", " |\n", " &&\n", " # c\n", " &\n", ";\n"]
)
COMMANDS = st.lists(st.tuples(PARTS, BLANKS).map("".join), min_size=1, max_size=5).map("".join)
PLAINER_LINES = st.lists(st.tuples(COMMANDS, OPERATORS).map("".join), min_size=1, max_size=4).map("".join)

FUZZ = examples(150, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much])


def test_there_is_a_posix_shell_to_compare_with() -> None:
    assert "sh" in SHELLS


@FUZZ
@given(LINES)
def test_any_mix_of_shell_syntax_that_is_understood_is_run_exactly_so(line: str) -> None:
    assert disagreements(line) == []


@FUZZ
@given(PLAINER_LINES)
def test_nearly_plain_lines_that_are_understood_are_run_exactly_so(line: str) -> None:
    assert disagreements(line) == []


@pytest.mark.parametrize(
    "line",
    [
        "a b 'c d' \"e f\"g'h'",
        "a \\; b\\ c \\'d",
        "a ''; b \"\"",
        "a && b || c; d | e",
        "a # b\nc",
        "a |\nb",
        "a &&\n\n b\n",
        "cmd | head -30\nrm y",
        "a >x 2>&1; b >>y 2>/dev/null",
        ">x a b",
        "</dev/null a",
        "2>x a 1 2>y",
        "a '\n' \"\n\" '\t'",
        'a "x\\"y" "\\n" "\\\\" "\\$" "cost $" "\\`"',
        "a é 'é' \"日本\"",
        "a {} x{} HEAD~1 a#b 50% a@b x=y --k=v [x] !x ^x",
        "a * ?.py [ab]c",
    ],
)
def test_plain_lines_are_run_as_they_are_read(line: str) -> None:
    assert disagreements(line) == []


@pytest.mark.parametrize(
    "line",
    [
        "if a; then b; else c; fi",
        "for x in 1 '2 3'; do a \"$x\" $x; done",
        "while a; do b; done",
        "case x in y) a ;; *) b ;; esac",
        "a <<'E' | b\n$(c) `\nE\nd",
        "x=$(a 'b c') d \"$x\"; { e; } && (f)",
        'a `b c` "$(d)" $((1 + 2))',
        "! a && b",
        "a &\nb",
        "cmd a \\\n  b \\\n  && c",
    ],
)
def test_lines_with_more_structure_run_nothing_that_was_not_read(line: str) -> None:
    assert parse_line(line).opaque is None
    assert disagreements(line) == []


@pytest.mark.parametrize("shell", [name for name in ("dash", "bash") if name in SHELLS])
@pytest.mark.parametrize(
    "pieces,longest",
    [
        ("{},.a", 5),
        (("{", "}", ",", "..", "\\,", '"b,c"', "$x", "~"), 3),
        (("~", "a/", ":", "=", "root", '"q"', "+", "é", "a#"), 3),
        (("${x:-y}", '"${z:-a b}"', "${x%.*}", "${#x}", "{", "}", ",", "-"), 3),
    ],
)
def test_every_short_word_becomes_what_was_read(
    pieces: Sequence[str], longest: int, shell: str, tmp_path: Path
) -> None:
    """Braces, home directories and defaults: all words of these pieces, each against what the shell makes of it."""
    texts = ("".join(mix) for size in range(1, longest + 1) for mix in itertools.product(pieces, repeat=size))
    read = [(text, line.commands[0].words[1:]) for text in texts if not (line := parse_line(f"c {text}")).opaque]
    script = "x=1\n" + "\n".join(f"set -- {text}; printf '%s\\0' $# \"$@\"" for text, _ in read)
    ran = subprocess.run(
        [*SHELLS[shell][:-1], "-s"],
        input=script.encode(),
        capture_output=True,
        cwd=tmp_path,
        check=True,
        env={"HOME": "/h", "LC_ALL": "C.UTF-8"},
    )
    fields = iter(os.fsdecode(ran.stdout).split("\0"))
    found = {text: tuple(next(fields) for _ in range(int(next(fields)))) for text, _ in read}
    assert len(read) > 100
    assert {text: found[text] for text, words in read if not matches(found[text], words)} == {}


@pytest.fixture
def place() -> Iterator[Place]:
    """In memory where there is such a place: thousands of small files are made and removed."""
    memory = "/dev/shm" if Path("/dev/shm").is_dir() else None
    with tempfile.TemporaryDirectory(dir=memory, ignore_cleanup_errors=True) as home:
        yield Place(home)


def test_shells_run_nothing_in_thousands_of_broken_lines_that_was_not_read(place: Place) -> None:
    """What no reader of shell gets right by luck: every program and file of a line that is not opaque was foreseen."""
    lines = Lines(SEED, APPLETS - TAME)
    stubs = lines.programs() - APPLETS
    shells = [name for name in ("dash", "bash --posix", "busybox", "sh") if name in SHELLS][:3]
    statuses = [ALL_SUCCEED, ALL_FAIL, 0b101101001110, 0b010010110001]
    ran = 0
    found: list[str] = []
    for tried, line in enumerate(lines):
        wrong = trespasses(line, shells[tried % len(shells)], stubs, statuses[tried % 4], place)
        ran += wrong is not None
        found.extend(wrong or [])
        if ran == RUNS or len(found) > 20:
            break
    assert found == []


def test_the_comparison_would_notice_a_wrong_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    """The harness itself: a parser that takes $x for a word must be caught."""
    understood = parse_line("a b")
    monkeypatch.setattr("tests.security.policy.real_shell.parse_line", lambda command: understood)
    assert disagreements("a $x")
    assert disagreements("a b; b")
    assert disagreements("a b > y")
    assert disagreements("a b c")
    assert disagreements("a b") == []


def test_the_search_would_notice_a_program_that_was_not_read(monkeypatch: pytest.MonkeyPatch, place: Place) -> None:
    lines = {line: parse_line(line, (str(place.cwd),)) for line in ("a", "cd d; a", "a >o")}

    def read_as(read: str, command: str) -> list[str] | None:
        monkeypatch.setattr("tests.security.policy.real_shell.parse_line", lambda command, cwd: lines[read])
        return trespasses(command, "sh", {"a", "b"}, ALL_SUCCEED, place)

    assert read_as("a", "a") == []
    assert read_as("a", "a; b")
    assert read_as("a", "a; nothing")
    assert read_as("a", "a 'b")
    assert read_as("a", "cd d && a")
    assert read_as("a", "a >o")
    assert read_as("a >o", "a >o") == []
    assert read_as("cd d; a", "cd d; a") == []
