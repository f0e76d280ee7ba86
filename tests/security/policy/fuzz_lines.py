"""Lines by a grammar of the ways in which a line hides what it does; the judge's word on each against what it did.

`python -m tests.security.policy.fuzz_lines SEED COUNT` prints each line that a policy allowed and that broke it.
"""

# ruff: noqa: E501 - a line of shell is read more easily whole

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator
from itertools import islice

from tests.security.policy.real_effects import WORDS, forbidden, run_for_real
from tests.security.policy.strict_policy import STRICT

_FILES = [
    "a.txt",
    "secret/key",
    "src/app.py",
    "out/names",
    "out/new",
    "src",
    "secret",
    ".",
    "out",
    "*.txt",
    "s*/k*",
    "-",
]
_SPELLINGS = [
    "{}",
    "./{}",
    "/workspace/{}",
    "//workspace/{}",
    "/proc/self/cwd/{}",
    "out/../{}",
    "'{}'",
    '"{}"',
    "src/../{}",
]
_FIND_TESTS = [
    "-type f",
    "-name key",
    "-maxdepth 1",
    "-maxdepth 0",
    "-newer a.txt",
    "\\( -name k* \\)",
    "-o",
    ",",
    "!",
    "-print",
]
_FIND_STARTS = ["src", "secret", ".", ",", "')'", "-", "out a.txt", "-H src", "--", '"$d"', "s*"]
_PLACED = ["{}", "{}/../secret/key", "./{}", "{}.x", "out/{}", "{} {}"]
_GIT_OPTIONS = ["-C .", "-C src", '-C "$d"', "-C $d", "--no-pager", "-P", "-c color.ui=never", "-c core.pager=cat", "-c $c",
    "-c core.fsmonitor=frob", "-c alias.status='!frob'", "--git-dir=.git", "-p", "--paginate", "-c core.editor=frob"]  # fmt: skip
_GIT = ["status", "diff", "log -1", "log -p", "show HEAD", "grep b", "push -q origin HEAD", "push origin HEAD -q", "stash",
    "commit -qm x", "commit -q", "diff --ext-diff", "diff --output=src/app.py", "grep -Ofrob b", "config alias.x '!frob'",
    "config core.fsmonitor frob", "config --get user.name", "x", "show HEAD:secret/key", "diff --no-index a.txt secret/key",
    "log --format=%H --output=src/n", "grep --no-index CANARY", "archive HEAD", "archive -o src/a HEAD", "branch x",
    "checkout HEAD -- src/app.py", "ls-files", "cat-file -p HEAD:secret/key", "add a.txt", "rm -qf src/app.py",
    "mv src/app.py out/", "fetch -q --upload-pack=frob .", "remote -v", "$s", "blame secret/key", "worktree add out/w"]  # fmt: skip
_SED = ["p", "1efrob", "s/a/b/", "s/a/frob/e", "w src/app.py", "1w out/x", "r secret/key", "1r secret/key", "/a/d", "$!d", "1!p",
    "{p;p}", "a x\\\n1e frob", "s/a/b/w src/n", "y/a/b/;e frob", "$e frob", "s#a#b#;s#b#frob#e", "1,2{s/a/b/};1e frob"]  # fmt: skip
_AWK = ["{print}", "{print $1}", 'BEGIN{system("frob")}', '{print > "src/app.py"}', 'BEGIN{"frob"|getline}', '{print|"frob"}',
    '/a/{print "x > y"}', "{ if ($1 > 2) print }", 'BEGIN{while((getline l < "secret/key")>0) print l}',
    '{printf "%s", $1 > "out/x"}', 'BEGIN{print ENVIRON["x"]}', '{print "a | b"}']  # fmt: skip
_TAR = ["cf out/a.tar {f}", "-cf out/a.tar {f}", "cfI out/a.tar frob {f}", "cf - {f}", "cf out/a.tar -C secret key", "$t",
    "cf out/a.tar {f} --checkpoint=1 --checkpoint-action=exec=frob", "cf out/a.tar -T out/names", "cf src/a.tar a.txt",
    "--use-compress-program=frob -cf out/a.tar a.txt", "cf out/a.tar --to-command=frob a.txt", "cfF out/a.tar frob a.txt"]  # fmt: skip
_ASSIGNED = ["", "", "", "d='. push origin HEAD'; ", "d=secret; ", "c=core.fsmonitor=frob; ", "t='cfI out/a.tar frob a.txt'; ",
    "s='push origin HEAD'; ", "x=-exec; ", "x=secret/key; ", "x='-e1efrob'; ", "x=frob; ", "export d=secret; ", "d=src; "]  # fmt: skip
_WRAPPERS = ["env", "env -i", "env -u CI", "env X=1", "env FOO=1", "nice", "nice -n 5", "timeout 5", "timeout -s KILL 5", "nohup", "setsid",
    "command", "stdbuf -o0", "time", "ionice -c3", "linux64", "setarch x86_64", "choom -n 0 --", "flock out/l", "env --", "exec",
    "flock -n out/l", "/usr/bin/env", "/usr/bin/timeout 5", "xargs -a out/names", "env -S", "/lib64/ld-linux-x86-64.so.2",
    "busybox", "prlimit", "taskset 1", "env -C secret", "env --chdir=secret", "builtin", "!", "nice -5", "env -"]  # fmt: skip
_SHELLS = [
    "sh -c",
    "sh -ec",
    "bash -c",
    "dash -c",
    "sh -xc",
    "bash -lc",
    "bash -o pipefail -c",
    "sh -c --",
    "bash +e -c",
    "sh -c -e",
]
_SCRIPTS = ["sh", "sh -", "sh -s", "sh /dev/stdin", "bash /proc/self/fd/0", "sh tools/ok.sh", "sh out/script", "sh ./out/script",
    "sh /workspace/tools/ok.sh", "sh /workspace/tools/../out/script", "sh -- out/script", "bash --rcfile out/script -i",
    'sh "$x"', "sh -x /workspace/tools/ok.sh", "sh +x out/script", "bash -", "sh -e -s", "sh /workspace/tools/*.sh"]  # fmt: skip
_MAKE = ["make", "make x", "make -f out/makefile x", "make -f - x", "make -C out x", "make x --eval='y:;frob'", "make --eval='y:;frob' y",
    "make x SHELL=frob", "make -Bx", "make -sf out/makefile x", "make -s x", "make x V=1", "make MAKEFILES=out/makefile x",
    "make -Iout x", "make -E 'y:;frob' y", "make x -f out/makefile", "make --makefile out/makefile", "make x -j2 -k"]  # fmt: skip
_READERS = ["cat", "head -1", "sort", "grep CANARY", "grep -r CANARY", "wc", "tee", "cp -t out", "sort -o", "tail -n1", "cp", "ls", "mv",
    "sed -n p", "sed -i s/a/b/", "awk 1", "grep -f", "sort --files0-from=", "wc --files0-from=", "cp -r", "ln -s", "dd if="]  # fmt: skip


class Lines:
    """Lines without end, the same for the same seed."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def __iter__(self) -> Iterator[str]:
        while True:
            yield self._one(self._ASSIGNED) + self._line()

    _ASSIGNED = _ASSIGNED

    def _one(self, choices: list[str]) -> str:
        return self._random.choice(choices)

    def _some(self, choices: list[str], most: int) -> str:
        return " ".join(self._one(choices) for _ in range(self._random.randint(0, most)))

    def _line(self) -> str:
        line = self._command(3)
        while self._random.random() < 0.25:
            line += self._one(["; ", " && ", " || ", " | ", "\n", " & "]) + self._command(2)
        if self._random.random() < 0.1:
            line = self._one(["cd src; ", "cd secret && ", 'cd "$d"; ', "cd /proc/self/cwd; ", "cd out/..; "]) + line
        if self._random.random() < 0.1:
            line += self._one([" > ", " >> ", " < ", " 2> "]) + self._file()
        return line

    def _command(self, depth: int) -> str:
        kinds: list[Callable[[int], str]] = [self._leaf] * 2 + [self._wrapped] * (2 if depth else 0)
        kinds += [self._git, self._git, self._find, self._sed, self._tar, self._script, self._xargs, self._reader]
        return self._random.choice(kinds)(depth)

    def _leaf(self, _: int) -> str:
        return self._one(
            ["frob", "frob x", "'frob'", "f\\rob", '"$x"', "echo frob", "cat a.txt", "/state/bin/frob", "fro?", "$x y"]
        )

    def _file(self) -> str:
        file = self._one(_FILES)
        return self._one(_SPELLINGS).format(file) if self._random.random() < 0.4 else file

    def _wrapped(self, depth: int) -> str:
        inner = self._command(depth - 1)
        if self._random.random() < 0.35:
            quoted = "'" + inner.replace("'", "'\\''") + "'" if self._random.random() < 0.7 else f'"{inner}"'
            return f"{self._one(_SHELLS)} {quoted}"
        if self._random.random() < 0.15:
            return self._one(
                ["$({})", '"$({})"', "`{}`", "echo $({})", "({})", "{{ {}; }}", "if true; then {}; fi"]
            ).format(inner)
        return f"{self._one(_WRAPPERS)} {inner}"

    def _git(self, _: int) -> str:
        words = ["git", self._some(_GIT_OPTIONS, 2), self._one(_GIT)]
        if self._random.random() < 0.3:
            words.append(
                self._one(["--no-pager", "-C .", "--", self._file(), "$x", "--ext-diff", "--textconv", "-p", "--get"])
            )
        return " ".join(word for word in words if word)

    def _find(self, depth: int) -> str:
        runs = self._one(["-exec", "-exec", "-execdir", "-ok", "$x"])
        what = self._one(["frob", "cat", "cp a.txt", "sh -c frob", "grep -r CANARY", "git push origin", "sed -n p"])
        if self._random.random() < 0.3:
            what = self._command(max(depth - 1, 0))
        end = self._one(["\\;", "';'", "+", "{} +", "+ \\;"])
        before = f"{self._some(_FIND_STARTS, 2)} {self._some(_FIND_TESTS, 2)}"
        more = self._one(["", "", "-fprint src/n", "-delete", "-files0-from out/names", "-print"])
        return f"find {before} {runs} {what} {self._one(_PLACED)} {end} {more}"

    def _sed(self, _: int) -> str:
        if self._random.random() < 0.4:
            quote = self._one(["'", "'", '"'])
            return f"awk {self._some(['-F:', '-v x=1', '--', '-f out/script'], 1)} {quote}{self._one(_AWK)}{quote} {self._file()}"
        options = self._some(
            ["-n", "-e p", "-i", "-i.bak", "-s", "-E", "--", "-e", "$x", "-f", "-ne", "--expression", "-z"], 2
        )
        return f"sed {options} '{self._one(_SED)}' {self._file()} {self._some(['-e1efrob', '-i', '$x', 'a.txt'], 1)}"

    def _tar(self, _: int) -> str:
        return (
            self._one(_MAKE) if self._random.random() < 0.5 else f"tar {self._one(_TAR).replace('{f}', self._file())}"
        )

    def _script(self, _: int) -> str:
        feeds = ["", "echo frob | ", "cat out/script | ", "printf 'frob\\n' | "]
        return self._one(feeds) + self._one(_SCRIPTS) + self._one(["", " < out/script", " x", " < out/names"])

    def _xargs(self, depth: int) -> str:
        fed = self._one(
            [
                "cat out/names",
                "echo frob",
                "echo push origin HEAD",
                "echo secret/key",
                "echo -e1efrob",
                "printf '%s\\n' -x",
            ]
        )
        options = self._some(
            ["-n1", "-I%", "-I{}", "-0", "-L1", "-t", "-r", "-i", "-d' '", "-P2", "--", "-a out/names"], 2
        )
        what = self._one(
            [
                "git",
                "git -C .",
                "env",
                "sh -c",
                "cat",
                "% x",
                "sed -n",
                "nice",
                "timeout 5",
                "echo %",
                "sh -c %",
                "find",
                "{}",
            ]
        )
        return f"{fed} | xargs {options} {what if self._random.random() < 0.7 else self._command(max(depth - 1, 0))}"

    def _reader(self, _: int) -> str:
        return f"{self._one(_READERS)} {self._some(['-r', '-n', '--', '-', '$x', '-R'], 1)} {self._file()} {self._some(_FILES, 1)}"


def findings(seed: int, count: int) -> tuple[int, list[str]]:
    """Try `count` lines that a policy allows. Return how many of them did anything, and those that broke a policy."""
    allowed = (line for line in Lines(seed) if _is_allowed(line))
    lines = list(islice(allowed, count))
    did = list(zip(lines, run_for_real(lines), strict=True))
    found = [
        f"{line!r} did {sorted(done)} under {names}" for line, (done, _) in did if (names := forbidden(line, done))
    ]
    return sum(bool(done) for _, (done, _) in did), found


def _is_allowed(line: str) -> bool:
    return any(policy.judge("execute", {"command": line}).verdict == "allow" for policy in (WORDS, STRICT))


if __name__ == "__main__":
    _did, _found = findings(int(sys.argv[1]), int(sys.argv[2]))
    print(f"{_did} lines did something", *_found, sep="\n")
