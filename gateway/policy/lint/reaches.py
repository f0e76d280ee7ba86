"""What a policy lets through beside what it says: interpreters that run any code, and other ways to a denied path.

Calls are tried out against the policy, so what a deny rule takes away again is not found.
"""

import posixpath
import shlex
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

from gateway.policy.cover import alternatives, shown_argv
from gateway.policy.document import Rule
from gateway.policy.fields import ArgvWord, Placeholder
from gateway.policy.globs import compile_glob, sample_path
from gateway.policy.layers import ScopedRule
from gateway.policy.lint.findings import Finding, Linted
from gateway.policy.words import names

_INTERPRETERS = names("""python python3 pypy3 node deno bun perl ruby lua php julia R Rscript awk gawk mawk sh bash dash
    ash zsh ksh mksh csh tcsh fish pwsh nu java tclsh wish expect ipython guile racket runghc ghci ghc erl escript
    elixir iex scala groovy bpftrace stap gdb lldb jshell kotlin swift dart raku crystal nim octave gnuplot osascript
    pry m4 tex latex pdflatex gs""")
_STARTERS = names("""make gmake ninja cmake npm pnpm yarn cargo go mvn gradle ant rake bundle uv poetry just ctest sbt
    ansible ansible-playbook ansible-console terraform docker podman kubectl pipenv pdm hatch conda npx bunx pnpx uvx
    pipx invoke task fab mise direnv strace ltrace valgrind perf watch parallel entr sudo doas su chroot nsenter unshare
    screen tmux script psql mysql mongosh redis-cli sftp socat mutt nmap tcpdump openssl ssh man""")
_BUILDERS = names("""pytest tox nox pip pip3 composer dotnet bazel buck meson scons cabal stack mix rebar3 lein jest
    vitest pre-commit""")
_RUN_CODE = _INTERPRETERS | _STARTERS | _BUILDERS
_FREE = ("sample", "run sample", "exec sample", "-c pass", "-e 0", "-r 0")
"""Arguments of interpreters and starters: a rule that lets one of them pass lets any code run."""
_OTHERS = ("bin/sample", "./sample", "env sh /tmp/sample", "xargs sh", "find . -exec sh /tmp/sample ';'")
_Door = tuple[str, str, dict[str, Any]]
"""A way to a path for people, and the call that takes it."""
_HARMLESS = frozenset({"--version", "-V", "--help", "version"})


def reaches_interpreters(linted: Linted) -> Iterator[Finding]:
    """Yield a warning for each rule that lets any code run, a note for one that runs code on fixed words."""
    free: dict[str, list[str]] = defaultdict(list)
    for command in _samples(linted):
        for name in linted.runs(command) or ():
            free[name].append(command)
    for placed in linted.own:
        rule = placed.rule
        if rule.effect != "allow" or "execute" not in rule.tools:
            continue
        if rule.argv is None and linted.runs("sample"):
            what = "any command may run: only the sandbox limits commands, no rule does"
            yield linted.finding("any-command", placed, what, "write argv to say which commands")
        elif placed.name in free:
            commands = [f"`{command}`" for command in free[placed.name]]
            what = f"reaches any code: {', '.join(commands[:3])}{' and more' if commands[3:] else ''} may run"
            fix = "name more of the command's words (a placeholder, {end: true}), or ask about it"
            yield linted.finding("reaches-interpreter", placed, what, fix)
        else:
            yield from _fixed(linted, placed)


def _samples(linted: Linted) -> Iterator[str]:
    """Yield command lines that run any code, of the programs that rules name; all of them where a rule names none."""
    firsts = [prefix[0] for placed in linted.own for prefix in placed.rule.argv or ()]
    named = {name for first in firsts for name in alternatives(first)}
    known = _INTERPRETERS | _STARTERS
    for name in sorted(known if "*" in named else (one for one in named if one.rpartition("/")[2] in known)):
        yield from (f"{name} {arguments}" for arguments in _FREE)
    yield from _OTHERS


def _fixed(linted: Linted, placed: ScopedRule) -> Iterator[Finding]:
    found: list[str] = []
    for prefix in placed.rule.argv or ():
        runs = [name for name in alternatives(prefix[0]) if name.rpartition("/")[2] in _RUN_CODE]
        if not runs or (len(prefix) > 1 and prefix[1] in _HARMLESS):
            continue
        sample = shlex.join(filter(None, map(_sample_word, (runs[0], *prefix[1:]))))
        if placed.name in (linted.runs(sample) or ()):
            found.append(shown_argv(((tuple(runs) if runs[1:] else runs[0]), *prefix[1:])))
    if found:
        what = f"`{'`, `'.join(found[:3])}` runs the code that the project's files hold"
        yield linted.finding("runs-code", placed, what, "make sure that no rule allows writing these files")


def _sample_word(word: ArgvWord) -> str | None:
    """Return a word that stands in a prefix; None for its end."""
    if isinstance(word, Placeholder):
        if word.path is not None:
            return sample_path(compile_glob(word.path[0])) or "sample"
        if word.number is not None:
            return str(max(word.number.least, 0))
        return None if word.end else "sample"
    text = alternatives(word)[0]
    return "sample" if text == "*" else text


def side_doors(linted: Linted) -> Iterator[Finding]:
    """Yield the deny and ask rules about paths that another way leads around."""
    for placed in linted.own:
        for kept, kind, doors in (("read_file", "read", _reading), ("write_file", "write", _writing)):
            if kept not in placed.rule.tools or not _keeps(placed.rule):
                continue
            found: dict[str, str] = {}
            for glob in placed.rule.paths or ():
                path = sample_path(compile_glob(glob))
                for name, tool, arguments in doors(path) if path is not None else ():
                    if tool == "execute" and linted.loosest.file_rules is not None:
                        continue  # the kernel keeps commands from what rules forbid, whatever their lines say
                    allowed = linted.allowed(tool, **arguments)
                    if allowed is not None:
                        shown = f"`{arguments['command']}`" if tool == "execute" else f"{tool} {arguments['path']}"
                        found.setdefault(name, f"{name} ({shown}, rule {allowed[0]})")
            if found:
                paths = ", ".join((placed.rule.paths or ())[:3])
                what = f"the rule blocks {kept} on {paths}, but these calls reach it: {', '.join(found.values())}"
                fix = f"write tools: [{kind}] for all file tools; for commands, allow certain ones by argv"
                yield linted.finding("side-door", placed, what, fix)


def _keeps(rule: Rule) -> bool:
    """Return whether a rule always keeps some paths from a tool."""
    always = rule.unless is None and rule.time is None and rule.when is None
    return rule.effect != "allow" and rule.paths is not None and always


def _reading(path: str) -> Iterator[_Door]:
    yield "grep", "grep", {"path": path, "pattern": "x"}
    yield "grep above it", "grep", {"path": posixpath.dirname(path), "pattern": "x"}
    yield "an interpreter", "execute", {"command": f"python3 -c \"print(open('{path}').read())\""}
    yield "an expansion", "execute", {"command": f"f={path}; cat $f"}


def _writing(path: str) -> Iterator[_Door]:
    yield "edit_file", "edit_file", {"path": path, "old": "a", "new": "b"}
    yield "a redirect", "execute", {"command": f"echo x > {path}"}
    yield "an interpreter", "execute", {"command": f"python3 -c \"open('{path}', 'w')\""}
