"""Command lines, taken apart."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from gateway.policy.parts import read_programs
from gateway.policy.shell import LIMIT_BYTES, parse_line
from gateway.policy.shell_grammar import LIMIT_NESTING
from gateway.policy.shell_line import Redirect
from gateway.policy.words import Word
from tests.cpu_time import costs_at_most
from tests.unit.gateway.policy.everyday import everyday

HERE = ("/workspace",)


def words(line: str) -> list[list[str]]:
    """The words of each command of an understood line."""
    parsed = parse_line(line)
    assert parsed.opaque is None
    return [[word.text for word in command.words] for command in parsed.commands]


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
        ("a 'é' \"日本\"", [["a", "é", "日本"]]),
        ("a {} HEAD~1 b#c x=y 50%", [["a", "{}", "HEAD~1", "b#c", "x=y", "50%"]]),
        ("a \\\n  b \\\n  && c", [["a", "b"], ["c"]]),
        ("cmd | head -30\nrm y", [["cmd"], ["head", "-30"], ["rm", "y"]]),
        ("a & b &\nc &", [["a"], ["b"], ["c"]]),
        ("! a | b", [["a"], ["b"]]),
        ("(a; b) && { c; }", [["a"], ["b"], ["c"]]),
        ("if a; then b; elif c; then d; else e; fi", [["a"], ["b"], ["c"], ["d"], ["e"]]),
        ("while a; do b; done; until c\ndo d\ndone", [["a"], ["b"], ["c"], ["d"]]),
        ("for x in 1 $(a) 2; do b x; done", [["a"], ["b", "x"]]),
        ("case $x in a|*.py) b ;; *) c; d ;; esac", [["b"], ["c"], ["d"]]),
        ("[ ! -f x ]; [ 'a' = b -o $c ]", [["[", "!", "-f", "x", "]"], ["[", "a", "=", "b", "-o", "$c", "]"]]),
        ("echo >&2 a b", [["echo", "a", "b"]]),
        (">x a b", [["a", "b"]]),
        ("x=1 CI=1 a y=2", [["a", "y=2"]]),
        ("x=$(a b); LC_ALL=C sort", [["a", "b"], ["sort"]]),
        ("while IFS= read -r line; do a; done", [["read", "-r", "line"], ["a"]]),
        ('a "$(b "$(c)")" `d`', [["c"], ["b", "$(c)"], ["d"], ["a", '$(b "$(c)")', "`d`"]]),
        ("cat <<'E' | b\nx $(y) `z\n E\nE\nc", [["cat"], ["b"], ["c"]]),
        ("cat <<-E\n\tx $y ${z} 5$\n\tE\nc", [["cat"], ["c"]]),
        ("a <<E <<'F' b\nx\nE\ny $(rm)\nF", [["a", "b"]]),
        ("time make x", [["time", "make", "x"]]),
        ("# a\n\n# b", []),
        ("# a\nb", [["b"]]),
        ("cat <<'E-F.1'\n$(x)\nE\nE-F.1\nb", [["cat"], ["b"]]),
        ('cat <<"-E"\n`x`\nE\n-E\nb', [["cat"], ["b"]]),
        ("cat <<E.F\n$x\nE.F\nb", [["cat"], ["b"]]),
        ("LC_ALL=C.UTF-8 LANG=de_DE.utf8 LC_CTYPE= a", [["a"]]),
        ("export A=~/x; pushd a; popd", [["export", "A=~/x"], ["pushd", "a"], ["popd"]]),
        ("git show stash@{0} HEAD^{commit} @{u}..", [["git", "show", "stash@{0}", "HEAD^{commit}", "@{u}.."]]),
        ('a "${x:-$(b c)}"', [["b", "c"], ["a", "${x:-$(b c)}"]]),
    ],
)
def test_everyday_shell_is_taken_apart_into_words(line: str, expected: list[list[str]]) -> None:
    assert words(line) == expected


def test_redirects_are_the_files_that_the_shell_opens() -> None:
    line = parse_line('a >x 2>>/tmp/y </dev/null 2>&1; { b; } > "$z"')
    assert line.opaque is None
    assert line.redirects == (
        Redirect("x", True, HERE),
        Redirect("/tmp/y", True, HERE),
        Redirect("/dev/null", False, HERE),
        Redirect(None, True, HERE),
    )


@pytest.mark.parametrize(
    "word,expected",
    [
        ("a", Word("a")),
        ("'b*'", Word("b*")),
        ("[", Word("[")),
        ("*.py", Word("*.py", "glob")),
        ("src/[ab]?", Word("src/[ab]?", "glob", prefix="src/")),
        ("$x", Word("$x", "expansion")),
        ("a${x}", Word("a${x}", "expansion", prefix="a")),
        ('"a $x"', Word("a $x", "expansion", single=True, prefix="a ")),
        ('"$@"', Word("$@", "expansion")),
        ('"$*"', Word("$*", "expansion", single=True)),
        ('"$x"/*', Word("$x/*", "expansion")),
        ("$?", Word("$?", "expansion", single=True)),
        ("$((1 + 2))", Word("$((1 + 2))", "expansion", single=True)),
        ("~/x", Word("~/x", "expansion", single=True)),
        ("~", Word("~", "expansion", single=True)),
        ("~root/x", Word("~root/x", "expansion", single=True)),
        ("a=~/x", Word("a=~/x", "expansion", single=True, prefix="a=")),
        ("host:~/x", Word("host:~/x", "expansion", single=True, prefix="host:")),
        ("@~7", Word("@~7")),
        ("'~'/x", Word("~/x")),
        ('~"root"', Word("~root")),
        ("stash@{0}", Word("stash@{0}")),
        ("HEAD^{commit}", Word("HEAD^{commit}")),
        ("@{u}..@{1}", Word("@{u}..@{1}")),
        ("{a}{b}", Word("{a}{b}")),
        ("'{a,b}'", Word("{a,b}")),
        ("\\{a,b}", Word("{a,b}")),
        ("src/{a,b}", Word("src/{a,b}", "expansion", prefix="src/")),
        ("{,-rf}", Word("{,-rf}", "expansion")),
        ("x{1..3}", Word("x{1..3}", "expansion", prefix="x")),
        ("x{a,{b,c}}", Word("x{a,{b,c}}", "expansion", prefix="x")),
        ("{a},b}", Word("{a},b}", "expansion")),
        ("{a,b", Word("{a,b", "expansion")),
        ("$x{a,b}", Word("$x{a,b}", "expansion")),
        ("a~{b,c}", Word("a~{b,c}", "expansion", prefix="a")),
        ("~{b,c}", Word("~{b,c}", "expansion")),
        ('"{a,$x}"', Word("{a,$x}", "expansion", single=True, prefix="{a,")),
        ("${x:-y}", Word("${x:-y}", "expansion")),
        ('"${x:-a b}"', Word("${x:-a b}", "expansion", single=True)),
        ('"a${x%.*}b"', Word("a${x%.*}b", "expansion", single=True, prefix="a")),
        ('"${1:-$y}"', Word("${1:-$y}", "expansion", single=True)),
        ('"${x:-$@}"', Word("${x:-$@}", "expansion")),
        ("${#x}", Word("${#x}", "expansion", single=True)),
        ("été", Word("été")),
        ("テ*", Word("テ*", "glob", prefix="テ")),
        ("`b`", Word("`b`", "expansion")),
        ('"$(b c)"', Word("$(b c)", "expansion", single=True)),
        ('"\\$x"', Word("$x")),
        ("'$x'", Word("$x")),
    ],
)
def test_a_word_says_what_is_known_of_it(word: str, expected: Word) -> None:
    line = parse_line(f"echo {word}")
    assert line.opaque is None
    assert line.commands[-1].words[1] == expected
    assert (expected.literal is None) == (expected.kind != "literal")


@pytest.mark.parametrize(
    "line,expected",
    [
        ("cd a && b", {"b": ("/workspace/a",)}),
        ("cd a; b", {"b": ("/workspace/a", "/workspace")}),
        ("cd a || exit 1; b", {"b": ("/workspace/a",)}),
        ("cd a || { echo no; exit 1; }\nb", {"b": ("/workspace/a",)}),
        ("if cd a; then b; else c; fi", {"b": ("/workspace/a",), "c": HERE}),
        ("! cd a && b", {"b": HERE}),
        ("(cd a && b); c", {"b": ("/workspace/a",), "c": HERE}),
        ("cd a & b", {"b": HERE}),
        ("echo $(cd a && b); c", {"b": ("/workspace/a",), "c": HERE}),
        ("cd /tmp/x/../y && cd .. && b", {"b": ("/tmp",)}),
        ("cd // && b", {"b": ("/",)}),
        ("cd $x; b", {"b": None}),
        ("cd -- '/tmp/it''s' && b", {"b": ("/tmp/its",)}),
        ("pushd a && b", {"b": ("/workspace/a",)}),
        ("pushd a; b; popd; c", {"b": ("/workspace/a", "/workspace"), "c": None}),
        ("pushd +1 && b", {"b": None}),
        ("pushd; b", {"b": None}),
        ("cd; b", {"b": None}),
        ("cd -P a && b", {"b": None}),
        ("cd - && b", {"b": None}),
        ("cd a b; c", {"c": None}),
        ("cd $x; cd /tmp && b; c", {"b": ("/tmp",), "c": None}),
        ("for x in 1 2; do cd ..; b; done; c", {"b": None, "c": None}),
        ("for x in 1 2; do (cd a && b); done; c", {"b": ("/workspace/a",), "c": HERE}),
        ("while cd a; do b; done", {"b": None}),
        ("case x in x) cd a ;; *) cd b ;; esac; c", {"c": ("/workspace", "/workspace/a", "/workspace/b")}),
        ("command cd a && b", {"b": None}),
        ("time cd a && b", {"b": None}),
        ("eval x && b", {"b": None}),
        ("exit; b", {"b": None}),
        ("a | cd b; c", {"c": ("/workspace", "/workspace/b")}),
        (";".join(f"cd d{n}" for n in range(9)) + "; b", {"b": None}),
    ],
)
def test_a_command_knows_the_directories_it_may_run_in(line: str, expected: dict[str, tuple[str, ...] | None]) -> None:
    parsed = parse_line(line)
    assert parsed.opaque is None
    found = {command.words[0].text: command.cwd for command in parsed.commands}
    assert {name: found[name] for name in expected} == expected


def test_a_line_can_start_elsewhere_and_its_redirects_know_it() -> None:
    line = parse_line("a > x; cd b && c > y", ("/tmp",))
    assert line.redirects == (Redirect("x", True, ("/tmp",)), Redirect("y", True, ("/tmp/b",)))


@pytest.mark.parametrize(
    "line,reason",
    [
        ("", "empty"),
        ("$x a", "name of a program is not known"),
        ("l$x a", "name of a program is not known"),
        ("echo ${PATH:=y}", "assigns PATH"),
        ("echo ${x/a/b}", "is not ${NAME}"),
        ("echo ${x:0:2}", "is not ${NAME}"),
        ("echo ${!x}", "is not ${NAME}"),
        ("echo ${x@P}", "is not ${NAME}"),
        ("echo ${#x%y}", "is not ${NAME}"),
        ("echo ${x[$(rm y)]}", "is not ${NAME}"),
        ("echo ${x:-y", "not closed"),
        ("echo ${x:-`rm y`}", "inside ${...}"),
        ("echo ${x:-'y'}", "inside ${...}"),
        ("echo ${x:-{a,b}}", "inside ${...}"),
        ('echo "${x:-\\}"; rm y', "inside ${...}"),
        ("echo ${x:-${IFS=z}}", "assigns IFS"),
        ("${x:-rm} y", "name of a program is not known"),
        ("r{m,mdir} y", "name of a program is not known"),
        ("~/rm y", "name of a program is not known"),
        ("~root/rm y", "name of a program is not known"),
        ("export x={a,PATH=b}", ""),
        ("echo {a,$(rm y)}", "with a command"),
        ('echo {a,"$(rm y)"}', "with a command"),
        ('echo {a,b}"`rm y`"', "with a command"),
        ('echo {a,"${x:-$(rm y)}"}', "with a command"),
        ("echo $((x + 1))", "arithmetic"),
        ("((x))", "(( ))"),
        ('echo "$$(("', "in text"),
        ('echo "$[x]"', "in text"),
        ("cat <<E\n$[x]\nE", "in text"),
        ("echo $'a'", "$ outside quotes"),
        ("PATH=1", "assigns PATH"),
        ("GIT_PAGER=a git log", "assigns GIT_PAGER"),
        ("http_proxy=a curl b", "assigns http_proxy"),
        ("npm_config_registry=a npm i", "assigns npm_config_registry"),
        ("IFS=: a", "assigns IFS"),
        ("LC_ALL=zh_CN.GBK a", "assigns LC_ALL"),
        ("LANG=de_DE a", "assigns LANG"),
        ('LC_CTYPE="$x" a', "assigns LC_CTYPE"),
        ("for LANG in C; do a; done", "assigns LANG"),
        ("cat <<'a b'\na b", "form that is not understood"),
        ("cat <<-E-\\F\nE-F", "form that is not understood"),
        ("a $(# b\nc)", "comment inside"),
        ("for PATH in a; do b; done", "assigns PATH"),
        ("x+=1 a", "not every shell"),
        ("x[0]=1 a", "not every shell"),
        ("a=(b c)", "array"),
        ("for x; do a; done", "another form"),
        ("for ((;;)); do a; done", "another form"),
        ("f() { ls; }", "( )"),
        ("function f { ls; }", "'function'"),
        ("[[ a ]]", "'[['"),
        ("select x in a; do b; done", "'select'"),
        ("if a; then fi", "well-formed"),
        ("if a; then b", "well-formed"),
        ("a; done", "'done'"),
        ("a &&", "well-formed"),
        ("a ;; b", "well-formed"),
        ("a )", "well-formed"),
        ("{ a }", "well-formed"),
        ("cat <<E\nx", "does not end"),
        ("cat <<E\n$(rm x)\nE", "runs commands"),
        ("cat <<E\n`rm x`\nE", "runs commands"),
        ("cat <<E\n${x:-$(rm y)}\nE", "runs commands"),
        ("cat <<E\nx\\\nE\nE", "backslash"),
        ("cat <<$x\n$x", "form that is not understood"),
        ("cat <<E 'a\nE\nb'\nE", "goes over the line end"),
        ("cat <<E \\\nx\nE", "backslash"),
        ("echo $(cat <<E\nE\n)", "form that is not understood"),
        ("echo $(a # b\n)", "comment inside"),
        ("echo `a \\`b\\``", "backslash"),
        ('echo "`a "b"`"', "quotes in quotes"),
        ("cat <<< x", "<<<"),
        ("a <(b)", "( )"),
        ("a |& b", "|&"),
        ("a &> b", "&>"),
        ("a >| b", ">|"),
        ("a <> b", "<>"),
        ("l*", "file name pattern"),
        ("'unclosed", "not closed"),
        ("ls\r", "U+000D"),
        ("ls \udc80", "valid text"),
        ("l\\\ns", "line end"),
        ('ls "a\\\nb"', "line end"),
        ("a 10>x", "descriptor"),
        ("café", "name of a program"),
        ("'café'", "name of a program"),
        ("ls > *", "not literal"),
        ("ls >&x", ">&"),
        ("%1", "name of a program"),
        ("-c ls", "options"),
        ("time x=1 a", "name of a program"),
        ("echo a2>x", "split"),
        ("x" * (LIMIT_BYTES + 1), "longer"),
        ("a;" * 300, "more than"),
        ("a=(" * 9000, "array"),
        ("a " * 4000, "words"),
        ("(" + "{ " * 5000, "too deep"),
        ("a $(" * 5000, "too deep"),
        ("a " + "( " * (LIMIT_NESTING + 1), "( )"),
        ("( " * (LIMIT_NESTING + 1) + "a" + " )" * (LIMIT_NESTING + 1), "too deep"),
    ],
)
def test_what_is_not_understood_is_opaque_and_says_why(line: str, reason: str) -> None:
    assert reason in (parse_line(line).opaque or "")


def test_the_commands_seen_in_an_opaque_line_are_still_listed() -> None:
    line = parse_line('echo "$(curl a)" `wget b` && X=1 nc c; for f in d; do dd ${f/x/y}; done > ~root')
    assert line.opaque
    assert {command.words[0].text for command in line.commands} == {"echo", "curl", "wget", "nc", "dd"}
    assert {command.cwd for command in line.commands} == {None}


def test_a_line_that_the_two_readers_split_otherwise_is_opaque(monkeypatch: pytest.MonkeyPatch) -> None:
    """As some releases of tree-sitter-bash do with a line that ends in a number, and the one after it."""
    joined = (("command", ((0, 3),)), ("command", ((6, 10), (11, 14), (15, 17), (18, 19))))
    monkeypatch.setattr("gateway.policy.shell.read_units", lambda source: (joined, True))
    line = parse_line("cmd | head -30\nrm y")
    assert "split it in another way" in (line.opaque or "")
    assert {"head", "rm"} <= {command.words[0].text for command in line.commands}


def test_nonsense_costs_no_more_than_its_share_of_time() -> None:
    started_s = time.thread_time()
    for line in ("a $(b; " * 20 + "c", "a=(a=" * 5000, "[ " * 9000, "a " * 16000, "if a; then " * 2000, "`" * 30000):
        parse_line(line)
    parse_line("a " * 15000)
    assert time.thread_time() - started_s < 5  # seconds that hold on a busy machine; each takes some milliseconds


def test_the_time_to_read_a_command_grows_as_its_words_do() -> None:
    many, few = (f"echo{' a' * count}" for count in (2_800, 280))
    assert costs_at_most(20, lambda: parse_line(many), beside=lambda: parse_line(few))


def test_nearly_all_everyday_commands_are_understood() -> None:
    lines = everyday()
    opaque = {line: reason for line in lines if (reason := read_programs(line).opaque)}
    by_reason = "\n".join(sorted(f"{reason}: {line!r}" for line, reason in opaque.items()))
    assert len(set(lines)) == len(lines) >= 500
    assert len(opaque) <= 0.055 * len(lines), f"{len(opaque)} of {len(lines)} are opaque:\n{by_reason}"


def test_nearly_all_commands_of_a_public_cheat_sheet_are_understood() -> None:
    lines = (Path(__file__).parent / "cheat_sheets.txt").read_text().splitlines()[1:]
    opaque = [line for line in lines if read_programs(line).opaque]
    assert len(lines) >= 600
    assert len(opaque) <= 0.04 * len(lines), opaque


@pytest.mark.parametrize("line", ["echo ${x:=y}", "echo ${x=y} $x", "command", "# nothing"])
def test_a_line_that_assigns_a_name_of_its_own_or_does_nothing_is_understood(line: str) -> None:
    assert read_programs(line).opaque is None
