"""Attempts to run, through a few allowed programs, what the policy does not allow. All of them must be denied."""

from __future__ import annotations

import pytest

from tests.security.policy.attempts import ATTEMPTS
from tests.security.policy.real_shell import disagreements
from tests.security.policy.strict_policy import STRICT, verdict

CASES = [
    pytest.param(line, id=f"{family}-{place}") for family, lines in ATTEMPTS.items() for place, line in enumerate(lines)
]

# Each has the shape of some attempts above and does nothing wrong: a policy that denies everything proves nothing.
HARMLESS = [
    "ls -la src",
    "ls; ls && cat x || grep y z | wc -l",
    "cat a\ngrep b c\n",
    "ls # a comment",
    "l's' \"a b\" 'c;d' e\\;f",
    "grep '$(rm x)' src",
    "grep 'a\nb' x",
    'grep "cost: \\$5" x',
    "ls *.py src/[ab]?.txt",
    "wc -l src/*/*.py && cp -- *.txt out/",
    "timeout 5 ls",
    "nice -n 5 env nohup ls",
    "sh -c 'ls; cat x'",
    "bash -c 'sh -c ls'",
    "command ls",
    "ls | xargs echo",
    "ls | xargs -n 1 echo x",
    "git status --short && git log --oneline -- src/app.py",
    "python3 -m pytest -q tests",
    "for f in a.txt b.txt; do wc -l /workspace/src/app.py; done",
    "if test -f a.txt; then cat a.txt; else echo none; fi",
    "(cd src && cat app.py) | head -5",
    "cat > out/a <<'E'\nany $(text) here\nE",
    'n=3; echo "$n"',
    'echo "$(wc -l a.txt)"',
    "CI=1 git status --short",
    "cp a.txt out/b && cp out/b out/c",
    "sed -n '1,5p' a.txt | sort | head -2",
    "awk '{print $1}' a.txt",
    "! grep -q x a.txt",
    "echo x > out/a 2>/dev/null",
    "echo x >> /workspace/a.txt 2>&1",
    "cat < src/app.py",
    "cd src && ls && cat app.py",
    "# nothing to see\nls",
    "ls 'stash@{0}' stash@{0} x",
    "ls été 日本",
    "cat <<'E-F'\nE\nE-F\nls",
    'echo "${x:-y}" "${y%.*}" ${#x}',
    "cd src && echo x > /workspace/out/a",
    "> out/empty",
    "echo 'é' \"日本\"",
]


@pytest.mark.parametrize("line", CASES)
def test_an_attempt_to_run_something_else_is_denied(line: str) -> None:
    assert verdict(line) == "deny"


@pytest.mark.parametrize("line", CASES)
def test_an_attempt_that_is_understood_is_understood_as_shells_do(line: str) -> None:
    assert disagreements(line) == []


@pytest.mark.parametrize("line", HARMLESS)
def test_a_harmless_line_of_the_same_shape_is_allowed(line: str) -> None:
    assert verdict(line) == "allow"


@pytest.mark.parametrize(
    "path",
    [
        "/etc/passwd",
        "/workspace/../etc/passwd",
        "/workspace/./a",
        "/workspace//a",
        "//workspace/a",
        "/workspace/a/",
        "/workspaces/a",
        "/workspace\0/a",
        "/workspace/a\0",
        "workspace/a",
        "./a",
        "..",
        "",
        "~/a",
        "/Workspace/a",
        "/workspace/secret",
        "/workspace/secret/key",
        "/workspace/.env",
        "/workspace/a/b/.env",
        "\u2215workspace/a",
        None,
        5,
        ["/workspace/a"],
        {"path": "/workspace/a"},
    ],
)
@pytest.mark.parametrize("tool", ["ls", "read_file", "write_file", "edit_file", "glob", "grep"])
def test_a_file_tool_does_not_reach_past_its_paths(tool: str, path: object) -> None:
    assert STRICT.judge(tool, {"path": path, "pattern": "*"}).verdict == "deny"


@pytest.mark.parametrize("pattern", ["../*", "/etc/*", "a/../../*", "..", "a\0", None, 5])
def test_a_glob_pattern_does_not_leave_its_path(pattern: object) -> None:
    assert STRICT.judge("glob", {"path": "/workspace/src", "pattern": "*"}).verdict == "deny"  # .env may be below
    assert STRICT.judge("glob", {"path": "/workspace", "pattern": pattern}).rule == "invalid-arguments"


@pytest.mark.parametrize("tool", ["glob", "grep"])
def test_a_search_does_not_reach_denied_files_from_a_directory_above_them(tool: str) -> None:
    decision = STRICT.judge(tool, {"path": "/workspace", "pattern": "*"})
    assert (decision.verdict, decision.rule) == ("deny", "secrets")


@pytest.mark.parametrize("tool", ["", "Execute", "execute ", "bash", "read_file2", "rm", "*"])
def test_a_tool_that_no_rule_names_is_denied(tool: str) -> None:
    assert STRICT.judge(tool, {"path": "/workspace/a", "command": "ls"}).rule == "default-deny"


@pytest.mark.parametrize("command", [None, 5, ["ls"], {"command": "ls"}, b"ls"])
def test_a_command_that_is_not_text_is_denied(command: object) -> None:
    assert STRICT.judge("execute", {"command": command}).rule == "invalid-arguments"


def test_there_are_at_least_300_attempts() -> None:
    assert len({line for lines in ATTEMPTS.values() for line in lines}) >= 300
