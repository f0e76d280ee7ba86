"""Allow rules for execute that reach an interpreter or a shell: a program that may start one may run anything.

Commands are tried out against the policy, so what a deny rule takes away again is not found.
"""

from __future__ import annotations

import shlex
from collections import defaultdict
from collections.abc import Iterator

from gateway.policy.cover import ArgvWords, shown_argv
from gateway.policy.document import Placeholder
from gateway.policy.globs import compile_glob
from gateway.policy.globs_cover import sample_path
from gateway.policy.lint.findings import Finding, Linted

# Each runs a file by its name, the project's own or any other.
_RUN_SCRIPTS = """ipython tclsh wish expect guile racket runghc ghci escript erl elixir iex scala groovy pwsh osascript
    swift ansible ansible-playbook ansible-console terraform rake sbt mvn gradle ant just task invoke fab gdb lldb
    strace ltrace valgrind perf watch parallel entr sudo doas su chroot nsenter unshare screen tmux script ctest
    bundle pnpx bunx cscript bpftrace stap gnuplot octave R jshell kotlin dart crystal nim raku m4 tex
    latex pdflatex gs psql mysql mongosh redis-cli sftp socat mutt vimdiff emacs nano""".split()  # noqa: SIM905 - one name a line would take eighty

# Each runs what stands in its arguments, whatever that is.
_FREE = (
    *(f"{name} -c pass" for name in ("python", "python3", "pypy3")),
    *(f"{name} -e 0" for name in ("node", "perl", "ruby", "lua", "Rscript", "julia")),
    *(f"{name} -r 0" for name in ("php",)),
    *(f"{name} /tmp/sample" for name in ("sh", "bash", "dash", "zsh", "ksh", "python3", "node", "perl", "ruby")),
    *(f"{name} 'BEGIN {{ system(\"id\") }}'" for name in ("awk", "gawk", "mawk")),
    "deno eval 0",
    "bun -e 0",
    "sed -n 1e /tmp/sample",
    "vim -c '!id'",
    "vi -c '!id'",
    "ed /tmp/sample",
    "gdb -ex '!id'",
    "sqlite3 /tmp/sample '.shell id'",
    "env python3 -c pass",
    "env sh /tmp/sample",
    "find . -exec sh /tmp/sample ';'",
    "find . -exec python3 -c pass ';'",
    "xargs sh",
    "xargs python3 -c pass",
    "git -c alias.x=!id x",
    "git -c core.pager=id log",
    "tar -cf /tmp/sample.tar --checkpoint=1 --checkpoint-action=exec=id /tmp/sample",
    "rsync -e 'sh -c id' /tmp/a /tmp/b",
    "ssh -o ProxyCommand=id host",
    "zip /tmp/a.zip /tmp/a -T -TT id",
    "sort --compress-program=id /tmp/sample",
    "make --eval='x:;id' x",
    "npx sample",
    "uvx sample",
    "pipx run sample",
    "npm exec sample",
    "docker run sample",
    "podman run sample",
    "kubectl exec sample -- id",
    *(f"{name} sample" for name in _RUN_SCRIPTS),
    *(f"{name} run sample" for name in ("uv", "poetry", "pipenv", "pdm", "hatch", "conda", "npm", "pnpm", "yarn")),
    *(f"{name} exec sample" for name in ("bundle", "pnpm", "mise", "direnv")),
    *(f"{name} -c '!id'" for name in ("ipython", "nvim", "view")),
    *(f"{name} -e 0" for name in ("elixir", "ghc", "guile", "racket", "groovy", "bpftrace", "scala", "pry", "emacs")),
    *(f"{name} -c id" for name in ("zsh", "ksh", "mksh", "csh", "tcsh", "fish", "pwsh", "nu", "su", "script")),
    "psql -c '\\! id'",
    "mysql -e '\\! id'",
    "erl -eval 0",
    "nmap --script sample host",
    "tcpdump -z id -G 1 -w /tmp/sample",
    "ssh host id",
    "scp -S id a host:b",
    "man -P id sample",
    "less +!id /tmp/sample",
    "go run sample",
    "cargo run sample",
    "cmake -P sample",
    "ctest -S sample",
    "openssl engine -t /tmp/sample.so",
    "jshell sample",
    "java -jar sample",
    "bin/sample",
    "./sample",
)
_INTERPRETERS = frozenset(
    """python python3 pypy3 node deno bun perl ruby lua php julia Rscript awk gawk mawk sh bash dash ash zsh ksh mksh
    csh tcsh fish pwsh java tclsh wish expect ipython guile racket runghc ghci erl escript elixir iex scala groovy
    bpftrace gdb lldb jshell kotlin swift dart raku""".split()  # noqa: SIM905 - one name a line would take twenty
)
_RUNNERS = frozenset(
    """make gmake ninja cmake npm pnpm yarn pytest tox nox cargo go mvn gradle ant rake bundle composer pip pip3 uv
    poetry just cmake ctest sbt ansible ansible-playbook terraform docker podman kubectl pipenv pdm hatch conda npx bunx
    uvx pipx invoke fab dotnet swift bazel buck meson scons cabal stack mix rebar3 lein deno bun jest vitest
    pre-commit""".split()  # noqa: SIM905 - as above
)
_HARMLESS = frozenset({"--version", "-V", "--help", "version"})


def reaches_interpreters(linted: Linted) -> Iterator[Finding]:
    """Yield a warning for each rule that lets any code run, a note for one that runs code on fixed words."""
    free: dict[str, list[str]] = defaultdict(list)
    for command in _FREE:
        for name in linted.runs(command) or ():
            free[name].append(command)
    for placed in linted.own:
        rule = placed.rule
        if rule.effect != "allow" or "execute" not in rule.tools:
            continue
        if rule.argv is None and linted.runs("sample"):
            yield linted.finding(
                "any-command",
                "note",
                placed,
                "any command may run: what holds it is the sandbox, no rule",
                "write argv to say which commands",
            )
        elif placed.name in free:
            commands = [f"`{command}`" for command in free[placed.name]]
            yield linted.finding(
                "reaches-interpreter",
                "warning",
                placed,
                f"reaches any code: {', '.join(commands[:3])}{' and more' if commands[3:] else ''} may run",
                "write more of its words (a placeholder, {end: true}), or have it asked about",
            )
        else:
            yield from _fixed(linted, placed.name)


def _fixed(linted: Linted, name: str) -> Iterator[Finding]:
    placed = next(placed for placed in linted.own if placed.name == name)
    found: list[str] = []
    for prefix in placed.rule.argv or ():
        programs = (prefix[0],) if isinstance(prefix[0], str) else tuple(map(str, prefix[0]))
        runs = [name for name in programs if name.rpartition("/")[2] in _INTERPRETERS | _RUNNERS]
        if not runs or (len(prefix) > 1 and prefix[1] in _HARMLESS):
            continue
        if name in (linted.runs(sample_command((runs[0], *prefix[1:]))) or ()):
            found.append(shown_argv(((tuple(runs) if runs[1:] else runs[0]), *prefix[1:])))
    if found:
        yield linted.finding(
            "runs-code",
            "note",
            placed,
            f"`{'`, `'.join(found[:3])}` runs the code that the project's files hold",
            "see that write rules keep off these files",
        )


def sample_command(prefix: ArgvWords) -> str:
    """Return a command line that starts with an argv prefix."""
    return shlex.join(text for text in map(sample_word, prefix) if text is not None)


def sample_word(word: str | tuple[str, ...] | Placeholder) -> str | None:
    """Return a word that stands in a prefix; None for its end."""
    if isinstance(word, Placeholder):
        if word.path is not None:
            return sample_path(compile_glob(word.path[0])) or "sample"
        if word.number is not None:
            return str(max(word.number.least, 0))
        return None if word.end else "sample"
    text = word if isinstance(word, str) else word[0]
    return "sample" if text == "*" else text
