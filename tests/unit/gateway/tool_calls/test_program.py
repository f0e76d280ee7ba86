"""A program's shell line says what runs: parsed again, by policy and by real readers, it gives exactly its words."""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airlock.v1 import process_service_pb2 as pb
from gateway.errors import InvalidArgument, InvalidPath, TooLarge
from gateway.policy.document import PolicyDocument, Rule
from gateway.policy.judge import Policy
from gateway.policy.parts import read_programs
from gateway.policy.shell import parse_line
from gateway.tool_calls.program_calls import PROGRAM_LIMIT_BYTES, Program, program_of

HOSTILE = [
    "",
    " ",
    "\n",
    "a\nrm -rf /",
    "'",
    '"',
    "\\",
    "'\"'\"'",
    "$(id)",
    "`id`",
    "$HOME",
    "*",
    "~",
    "-rf",
    "--",
    "a=b",
    ";",
    "&&",
    "|",
    ">",
    "#",
    "{a,b}",
    "é🚀",
    "\t",
    "!",
    "%1",
]
words = st.one_of(st.sampled_from(HOSTILE), st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])))
names = st.one_of(
    st.sampled_from(["ls", "git", "if", "then", "time", "eval", "A=b", "PATH=.", "-x", "[", "{", "./run", "sh", "!"]),
    words.filter(bool),
)


def run(*argv: str, cwd: str = "/workspace", **env: str) -> Program:
    return Program(argv, cwd, env)


@given(names, st.lists(words, max_size=5))
def test_a_line_is_exactly_the_words_or_opaque(name: str, arguments: list[str]) -> None:
    line = run(name, *arguments).line()
    assert shlex.split(line) == [name, *arguments]
    parsed = parse_line(line)
    if parsed.opaque is None:
        assert [[word.text for word in command.words] for command in parsed.commands] == [[name, *arguments]]
        assert {word.kind for command in parsed.commands for word in command.words} == {"literal"}
        assert parsed.redirects == ()


@given(st.lists(st.sampled_from([word for word in HOSTILE if word.isprintable() or word == "a\nrm -rf /"]), max_size=6))
def test_words_that_people_can_read_are_never_opaque(arguments: list[str]) -> None:
    parsed = parse_line(run("git", *arguments).line())
    assert parsed.opaque is None
    assert [word.text for word in parsed.commands[0].words] == ["git", *arguments]


@pytest.mark.parametrize("name", ["if", "then", "for", "!", "{", "A=b", "PATH=/tmp", "eval", ".", "exec", "-c", "''"])
def test_a_name_that_a_shell_takes_for_something_else_is_opaque(name: str) -> None:
    assert read_programs(run(name, "ls").line()).opaque is not None


def judged(program: Program) -> str:
    rules = (
        Rule(id="git", tools=("execute",), effect="allow", reason="looks", argv=(("git", "status"), ("cd", "--"))),
        Rule(id="no-rm", tools=("execute",), effect="deny", reason="never", argv=(("rm",),)),
    )
    return (
        Policy(PolicyDocument(version=1, opaque="deny", rules=rules)).judge("execute", {"command": program.line()}).rule
    )


def test_a_program_is_judged_as_the_command_it_is() -> None:
    assert judged(run("git", "status", "; rm -rf /")) == "git"
    assert judged(run("git", "status", cwd="/tmp/it's here")) == "git"
    assert judged(run("git", "push")) == "default-deny"
    assert judged(run("rm", "x")) == "no-rm"
    assert judged(run("sh", "-c", "rm x")) == "no-rm"
    assert judged(run("timeout", "5", "rm", "x")) == "no-rm"


def test_an_environment_is_an_assignment_which_policy_cannot_read_for_sure() -> None:
    line = run("git", "status", GIT_PAGER="rm -rf /").line()
    assert line == "GIT_PAGER='rm -rf /' git status"
    assert judged(run("git", "status", GIT_PAGER="rm -rf /")) == "opaque"


def test_a_shell_without_a_script_is_opaque() -> None:
    assert judged(run("sh")) == "opaque"
    assert judged(run("bash", "-i")) == "opaque"


def test_the_line_leaves_out_the_directory_that_execute_has() -> None:
    assert run("ls").line() == "ls"
    assert run("ls", cwd="/tmp/a b").line() == "cd -- '/tmp/a b' && ls"
    assert run("if", "x").line() == "'if' x"


def test_a_request_becomes_a_program_with_a_plain_directory() -> None:
    program = program_of(pb.Program(argv=["ls", ""], cwd="/tmp/../workspace//a/.", env={"B": "2", "A": "1"}))
    assert program == Program(("ls", ""), "/workspace/a", {"A": "1", "B": "2"})
    assert program_of(pb.Program(argv=["ls"])).cwd == "/workspace"
    assert program.argv_bytes() == [b"ls", b""]


@pytest.mark.parametrize(
    "asked, kind, said",
    [
        (pb.Program(), InvalidArgument, "argv"),
        (pb.Program(argv=[""]), InvalidArgument, "argv"),
        (pb.Program(argv=["ls", "a\0b"]), InvalidArgument, r"argv\[1\]"),
        (pb.Program(argv=["ls"], env={"1A": ""}), InvalidArgument, "1A"),
        (pb.Program(argv=["ls"], env={"A-B": ""}), InvalidArgument, "A-B"),
        (pb.Program(argv=["ls"], env={"": ""}), InvalidArgument, "env"),
        (pb.Program(argv=["ls"], env={"A\n": ""}), InvalidArgument, "env"),
        (pb.Program(argv=["ls"], env={"A": "\0"}), InvalidArgument, "env"),
        (pb.Program(argv=["ls"], cwd="relative"), InvalidPath, "/workspace/relative"),
        (pb.Program(argv=["ls"], cwd="/a\0b"), InvalidPath, "NUL"),
        (pb.Program(argv=["ls"], cwd="/" + "a" * 5000), InvalidPath, "4,095"),
        (pb.Program(argv=["ls", "x" * 131_072]), TooLarge, "131,071"),
        (pb.Program(argv=["ls", *(["x" * 100_000] * 12)]), TooLarge, f"{PROGRAM_LIMIT_BYTES:,}"),
    ],
)
def test_what_no_kernel_takes_is_one_clear_error(asked: pb.Program, kind: type[Exception], said: str) -> None:
    with pytest.raises(kind, match=said):
        program_of(asked)


def test_no_more_words_are_read_than_a_program_may_have() -> None:
    class Counted(list[str]):
        read = 0

        def __iter__(self) -> Iterator[str]:
            for word in super().__iter__():
                self.read += 1
                yield word

    argv = Counted(["ls", *([""] * 1_000_000)])
    asked: Any = SimpleNamespace(argv=argv, env={}, cwd="")
    with pytest.raises(TooLarge, match=f"more than {PROGRAM_LIMIT_BYTES:,} bytes"):
        program_of(asked)
    assert argv.read <= PROGRAM_LIMIT_BYTES // 8 + 1


def test_a_mebibyte_of_arguments_passes_whatever_its_characters() -> None:
    for filler in ("x", "'", "\\", "é", "\n"):
        word = filler * (64 * 1024 // len(filler.encode()))
        program = program_of(pb.Program(argv=["printf", "%s", *([word] * 16)]))
        said = subprocess.run(["sh"], input=program.line().encode(), capture_output=True, check=True).stdout
        assert said == word.encode() * 16
