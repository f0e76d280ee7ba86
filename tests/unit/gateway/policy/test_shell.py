"""Command lines, taken apart."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.policy.shell import LIMIT_BYTES, Redirect, parse_line
from gateway.policy.wrappers import read_programs


def words(line: str) -> list[list[str]]:
    """The words of each command of an understood line."""
    parsed = parse_line(line)
    assert parsed.opaque is None
    return [[word.text for word in command] for command in parsed.commands]


@pytest.mark.parametrize(
    "line,expected",
    [
        ("ls -la", [["ls", "-la"]]),
        ("ls 'a b' \"c d\"'e'f 12", [["ls", "a b", "c def", "12"]]),
        ("a && b || c; d | e", [["a"], ["b"], ["c"], ["d"], ["e"]]),
        ("a\nb # c\n\n# d\ne;", [["a"], ["b"], ["e"]]),
        ("a |\nb &&\n\nc", [["a"], ["b"], ["c"]]),
        ('a "x\\"y" "\\n" "\\\\" "5 $"', [["a", 'x"y', "\\n", "\\", "5 $"]]),
        ("a '' \"\" \\; b\\ c", [["a", "", "", ";", "b c"]]),
        ("a 'x\ny'", [["a", "x\ny"]]),
        ("a {} HEAD~1 b#c x=y 50%", [["a", "{}", "HEAD~1", "b#c", "x=y", "50%"]]),
    ],
)
def test_plain_lines_are_taken_apart_into_words(line: str, expected: list[list[str]]) -> None:
    assert words(line) == expected


def test_redirects_are_the_files_that_the_shell_opens() -> None:
    line = parse_line("a >x 2>>/tmp/y </dev/null 2>&1")
    assert line.opaque is None
    assert line.redirects == (Redirect("x", True), Redirect("/tmp/y", True), Redirect("/dev/null", False))


def test_unquoted_file_name_patterns_are_marked() -> None:
    assert [word.kind for word in parse_line("ls *.py 'b*' src/[ab]? c").commands[0]] == [
        "literal",
        "glob",
        "literal",
        "glob",
        "literal",
    ]


@pytest.mark.parametrize(
    "line,reason",
    [
        ("", "empty"),
        ("echo $x", "expands a variable"),
        ('echo "$(ls)"', "expansion"),
        ("echo $(ls)", "inside another"),
        ("(ls)", "subshell"),
        ("A=1", "assigns a variable"),
        ("A=1 ls", "assigns a variable"),
        ("ls &", "background"),
        ("f() { ls; }", "function"),
        ("if a; then b; fi", "if"),
        ("cat <<E\nx\nE", "here-document"),
        ("ls ~", "home directory"),
        ("ls {a,b}", "{ }"),
        ("l*", "file name pattern"),
        ("'unclosed", "well-formed"),
        ("ls\r", "U+000D"),
        ("ls \udc80", "valid text"),
        ("ls \\\n-l", "split"),
        ("ls \\ x", "split"),
        ('ls "a\\\nb"', "line end"),
        ("a 10>x", "descriptor"),
        ("café", "ASCII"),
        ("ls >$x", "expands a variable"),
        ("ls > *", "not literal"),
        ("ls >&x", ">&"),
        ("%1", "name of a program"),
        ("-c ls", "options"),
        ("ls 2>x y", "exactly one"),
        ("echo a2>x", "split"),
        ("x" * (LIMIT_BYTES + 1), "longer"),
        ("a;" * 300, "more than"),
        ("a=(" * 9000, "too long to parse"),
    ],
)
def test_what_is_not_plain_is_opaque_and_says_why(line: str, reason: str) -> None:
    assert reason in (parse_line(line).opaque or "")


def test_the_commands_seen_in_an_opaque_line_are_still_listed() -> None:
    line = parse_line('echo "$(curl a)" `wget b` && X=1 nc c; for f in d; do dd $f; done')
    assert line.opaque
    assert {command[0].text for command in line.commands} == {"echo", "curl", "wget", "nc", "dd"}


def test_a_newline_ends_a_command_whatever_the_tree_says() -> None:
    """Some releases of tree-sitter-bash join the two lines: then the line must be opaque, never one command."""
    line = parse_line("cmd | head -30\nrm y")
    assert line.opaque or [command[0].text for command in line.commands] == ["cmd", "head", "rm"]


def programs(line: str) -> list[list[str]]:
    """The programs that are judged in an understood line."""
    read = read_programs(line)
    assert read.opaque is None
    return [[word.text for word in program.words] for program in read.programs if not program.wrapper]


@pytest.mark.parametrize(
    "line,expected",
    [
        ("env ls", [["ls"]]),
        ("env", [["env"]]),
        ("/usr/bin/env ls a", [["ls", "a"]]),
        ("timeout 5 ls", [["ls"]]),
        ("timeout 1.5m nice -n 5 nohup ls", [["ls"]]),
        ("nice ls", [["ls"]]),
        ("stdbuf -oL -e0 ls", [["ls"]]),
        ("command ls", [["ls"]]),
        ("command -v ls", [["command", "-v", "ls"]]),
        ("busybox ls", [["ls"]]),
        ("sh -c 'ls; cat a'", [["ls"], ["cat", "a"]]),
        ("/bin/bash -c \"sh -c 'ls a'\"", [["ls", "a"]]),
        ("sh build.sh -x", [["sh", "build.sh", "-x"]]),
        ("xargs", [["xargs"]]),
        ("xargs -0 -n 1 grep x", [["grep", "x", "*"]]),
        (
            "find . -exec ls + a {} \\;",
            [["find", ".", "-exec", "ls", "+", "a", "{}", ";"], ["ls", "+", "a", "*"]],
        ),
        ("find . -name x", [["find", ".", "-name", "x"]]),
        (
            "find . -exec ls {} + -exec cat \\;",
            [["find", ".", "-exec", "ls", "{}", "+", "-exec", "cat", ";"], ["ls", "*"], ["cat"]],
        ),
    ],
)
def test_wrapped_commands_are_judged_in_the_wrappers_place(line: str, expected: list[list[str]]) -> None:
    assert programs(line) == expected


@pytest.mark.parametrize(
    "line",
    [
        "env A=b ls",
        "env -i ls",
        "timeout -s 9 5 ls",
        "timeout 5",
        "nice -5 ls",
        "xargs -I{} ls {}",
        "xargs find .",
        "sh",
        "sh -ec ls",
        "sh -c ls x",
        "sh -c *",
        "./env ls",
        "sudo ls",
        "eval ls",
        ". x",
        "export A=b",
        "trap ls EXIT",
        "find . -delete",
        "find . -execdir ls \\;",
        "find . -exec ls",
        "find *",
        "cd x && ./y",
        "cd x && ls > y",
        "printf -v x y",
        "sh -c " + "'sh -c " * 1 + '"sh -c \\"sh -c $x\\""' + "'",
    ],
)
def test_a_wrapper_in_another_form_is_opaque(line: str) -> None:
    assert read_programs(line).opaque


def test_shells_in_shells_are_followed_to_a_depth_only() -> None:
    line = "env " * 10 + "ls"
    assert "too deep" in (read_programs(line).opaque or "")


def test_less_than_a_tenth_of_everyday_commands_is_opaque() -> None:
    lines = (Path(__file__).parent / "everyday.txt").read_text().splitlines()
    opaque = [line for line in lines if read_programs(line).opaque]
    assert len(lines) >= 100
    assert len(opaque) / len(lines) < 0.1, opaque
