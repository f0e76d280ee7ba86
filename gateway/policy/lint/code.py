"""Write rules over files that something runs later: who may write a Makefile and run `make` may run anything."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field

from gateway.policy.document import WRITING_TOOLS
from gateway.policy.globs import compile_glob
from gateway.policy.lint.findings import Finding, Linted
from gateway.policy.lint.interpreters import sample_word
from gateway.policy.scoped_rule import ScopedRule

_WORKSPACE = "/workspace"
_LIMIT_DIRECTORIES = 20

# Files that are run, and the commands that do: first those that stand in any directory, then those of the workspace's
# own directory.
_RUN_ANYWHERE = (
    (("conftest.py", "test_sample.py"), ("pytest", "pytest -q", "python3 -m pytest", "python -m pytest", "tox", "nox")),
    (("sample_test.go",), ("go test ./...", "go run .", "go generate")),
)
_RUN_BY = (
    (("Makefile", "makefile"), ("make", "make test", "make build", "make all")),
    (("package.json",), ("npm test", "npm run build", "npm install", "npm ci", "yarn", "yarn build", "pnpm install")),
    (("setup.py", "pyproject.toml"), ("pip install .", "pip install -e .", "python3 -m build", "uv sync")),
    (("build.rs", "Cargo.toml"), ("cargo build", "cargo test", "cargo run")),
    (("build.gradle",), ("gradle build", "./gradlew build")),
    (("CMakeLists.txt",), ("cmake .", "cmake --build .")),
    ((".npmrc",), ("npm install", "npm ci")),
    ((".git/hooks/pre-commit",), ("git commit -m sample", "git merge sample", "git checkout sample", "git push")),
    ((".git/config",), ("git status", "git diff", "git log", "git commit -m sample", "git fetch")),
    (("bin/sample", ".venv/bin/sample", "node_modules/.bin/sample"), ("bin/sample", ".venv/bin/sample", "npx sample")),
)
_ELSEWHERE = (".github/workflows/sample.yml", ".gitlab-ci.yml", ".envrc", ".bashrc", ".profile")


@dataclass
class _Reach:
    """What one write rule reaches, for people."""

    run: list[str] = field(default_factory=list)
    anyhow: list[str] = field(default_factory=list)
    elsewhere: list[str] = field(default_factory=list)


def writes_code(linted: Linted) -> Iterator[Finding]:
    """Yield the pairs of a write rule and a command that runs what it writes."""
    reached: dict[str, _Reach] = defaultdict(_Reach)
    anywhere = [(files, _first_run(linted, commands)) for files, commands in _RUN_ANYWHERE]
    at_the_top = [(files, _first_run(linted, commands)) for files, commands in _RUN_BY]
    for directory in _written_directories(linted):
        for files, run in (*anywhere, *(at_the_top if directory == _WORKSPACE else ())):
            for file in files:
                _take(linted, reached, f"{directory}/{file}", file, run)
    for file in _ELSEWHERE:
        for name in _may_write(linted, f"{_WORKSPACE}/{file}"):
            reached[name].elsewhere.append(file)
    for path, run in _scripts(linted):
        _take(linted, reached, path, path, run)
    for placed in linted.own:
        if placed.name in reached and placed.rule.effect == "allow":
            yield from _said(linted, placed, reached[placed.name])


def _take(linted: Linted, reached: dict[str, _Reach], path: str, shown: str, run: tuple[str, str] | None) -> None:
    if run is None:
        return
    command, by = run
    for name in _may_write(linted, path):
        if by:
            reached[name].run.append(f"{shown} (run by `{command}`, rule {by})")
        else:
            reached[name].anyhow.append(shown)


def _said(linted: Linted, placed: ScopedRule, reach: _Reach) -> Iterator[Finding]:
    run = list(dict.fromkeys(reach.run))
    if run:
        yield linted.finding(
            "writes-code",
            "warning",
            placed,
            f"lets code be written that another rule runs: {', '.join(run[:4])}{' and more' if run[4:] else ''}",
            "keep these files out of it (unless, or a deny rule), or have the command asked about",
        )
    others = list(dict.fromkeys([*reach.elsewhere, *([] if run else reach.anyhow)]))
    if others:
        yield linted.finding(
            "writes-code",
            "note",
            placed,
            f"covers files that are run later, perhaps outside of the sandbox: {', '.join(others[:6])}",
            "deny them where the workspace goes back to people or to a build machine",
        )


def _written_directories(linted: Linted) -> list[str]:
    """Return the directories that write rules name, the workspace first."""
    globs = (
        compile_glob(glob)
        for placed in linted.rules
        if placed.rule.effect == "allow" and not WRITING_TOOLS.isdisjoint(placed.rule.tools)
        for glob in placed.rule.paths or ()
    )
    return list(dict.fromkeys([_WORKSPACE, *(glob.root for glob in globs if glob.root)]))[:_LIMIT_DIRECTORIES]


def _may_write(linted: Linted, path: str) -> tuple[str, ...]:
    """Return the rules that let a file be written."""
    return linted.allowed("write_file", path=path, content="") or ()


def _first_run(linted: Linted, commands: tuple[str, ...]) -> tuple[str, str] | None:
    """Return the first command that passes, and the argv rule it passes by ("" for a rule about any command)."""
    passing: tuple[str, str] | None = None
    for command in commands:
        allowed = linted.runs(command)
        if allowed is None:
            continue
        by = next(linted.by_argv(allowed), None)
        if by is not None:
            return command, by
        passing = passing or (command, "")
    return passing


def _scripts(linted: Linted) -> Iterator[tuple[str, tuple[str, str]]]:
    """Yield the files that argv rules name as what is run, each with its command and its rule."""
    for placed in linted.rules:
        if placed.rule.effect != "allow":
            continue
        for prefix in placed.rule.argv or ():
            words = [sample_word(word) for word in prefix[:3]]
            for place, word in enumerate(words):
                script = word is not None and word.endswith((".py", ".sh", ".js", ".rb", ".pl"))
                if word is not None and (script or (place == 0 and "/" in word)):
                    path = word if word.startswith("/") else f"{_WORKSPACE}/{word.removeprefix('./')}"
                    yield path, (" ".join(filter(None, words)), placed.name)
                    break
