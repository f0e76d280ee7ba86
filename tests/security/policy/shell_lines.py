"""Command lines for real shells to run: made by a grammar, then broken in the ways that readers of shell get wrong."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator

from tests.unit.gateway.policy.everyday import everyday

PROGRAMS = ["a", "b", "c", "p1", "q-r", "run.sh", "cmd"]
_ARGUMENTS = [
    *[
        "x",
        "-n",
        "--k=v",
        "y=z",
        "1",
        "@",
        "%",
        "{}",
        "if",
        "done",
        "in",
        "esac",
        "a#b",
        "^",
        "!",
        "[x]",
        "*",
        "?.py",
        "~",
    ],
    *[
        "'a b'",
        '"a b"',
        "''",
        '""',
        "'#'",
        "'\n'",
        '"it\'s"',
        "'\"'",
        '"\\""',
        '"\\$x"',
        "\\;",
        "\\ ",
        "\\&",
        "\\'",
        '"$"',
    ],
    *["$x", '"$x"', "${y}", '"${y} z"', "$?", "$#", '"$@"', "$1", "$((1 + 2))", "x$y", '"-$x"', "'$x'"],
    *["'é'", '"日本"', "'`'", '"a\nb"', "é", "日"],
    *["stash@{0}", "HEAD^{c}", "{a,b}", "x{1..2}", "{,y}", "{a}", ",", "..", "~root", "a=~", "h:~", "@~7", "~+"],
    *["${x:-y}", '"${x:-a b}"', "${x%.*}", '"${x##*.}"', "${#x}", '"${x:-$y}"', "${x:+-v}", '"${x:-$(c z)}"', "${1-}"],
]
_PIECES = [
    *[
        " ",
        "  ",
        "\t",
        "\n",
        "\n\n",
        ";",
        ";;",
        "&",
        "&&",
        "||",
        "|",
        "|&",
        "!",
        "(",
        ")",
        "{",
        "}",
        "{ ",
        "; }",
        "#",
        " # c\n",
    ],
    *[
        "'",
        '"',
        "`",
        "\\",
        "\\\n",
        " \\\n ",
        "$",
        "$(",
        "$((",
        "))",
        "${",
        "~",
        "*",
        "[",
        "]",
        "=",
        "x=",
        "X=",
        "if ",
        "; then ",
        "; fi",
    ],
    *[
        "; do ",
        "; done",
        "for x in ",
        "while ",
        "case x in ",
        " esac",
        "in",
        "<",
        ">",
        ">>",
        "<<",
        "<<E\n",
        "\nE\n",
        "<<'E'\n",
        "<<-E\n",
    ],
    *[
        "\n\tE\n",
        "<<<",
        "<>",
        ">|",
        ">&",
        "2>",
        "2>&1",
        "&>",
        "3<",
        " >o ",
        "\nE",
        "EOF",
        "\\\nE\n",
        "$'",
        '$"',
        "{a,b}",
        "@{0}",
        "{a,",
        "${x:-",
        "${x%",
        "${x:=y}",
        "é",
        "time ",
    ],
    *[
        "c",
        " b x",
        "\nb y\n",
        "; c z; ",
        " && c ",
        "'\nb\n'",
        "1",
        "2",
        "cd d",
        "cd d && ",
        "(cd d; ",
        "exit",
        "function ",
    ],
]


class Lines:
    """An endless supply of lines. `applets` are names that a shell runs itself: they get an x in front."""

    def __init__(self, seed: int, applets: frozenset[str] = frozenset()) -> None:
        self._random = random.Random(seed)
        self._applets = re.compile(r"\b(" + "|".join(map(re.escape, sorted(applets))) + r")\b") if applets else None
        self._corpus = [self._harmless(line) for line in everyday()]

    def __iter__(self) -> Iterator[str]:
        while True:
            line = (
                self._list(self._random.choice([1, 1, 2, 2, 3]))
                if self._random.random() < 0.6
                else self._pick(self._corpus)
            )
            for _ in range(self._random.choice([0, 0, 1, 1, 2, 3])):
                line = self._broken(line)
            yield line.replace("/", "_")

    def programs(self) -> set[str]:
        """Return the names of programs that a line may hold, stubs for all of which are worth having."""
        words = {word for line in self._corpus for word in re.findall(r"[a-z][a-z0-9_.-]*", line)}
        return {*PROGRAMS, *words} - _BUILT_IN

    def _harmless(self, line: str) -> str:
        """Return a line of the corpus with no file elsewhere, and no program that a shell brings along."""
        line = line.replace("/", "_")
        return self._applets.sub(r"x\1", line) if self._applets else line

    def _pick(self, choices: list[str]) -> str:
        return self._random.choice(choices)

    def _list(self, depth: int) -> str:
        parts = [self._command(depth)]
        while self._random.random() < 0.4:
            parts.append(
                self._pick(
                    ["; ", ";", "\n", " && ", "&&", " || ", " | ", "|", " |\n", " &&\n", " & ", "\n\n", " # c\n"]
                )
            )
            parts.append(self._command(depth))
        return "".join(parts)

    def _command(self, depth: int) -> str:
        if depth == 0 or self._random.random() < 0.62:
            return self._simple(depth)
        inner, other = self._list(depth - 1), self._list(depth - 1)
        end = self._pick(["; ", "\n"])
        return self._pick(
            [
                f"({inner})",
                f"{{ {inner}{end}}}",
                f"! {self._simple(depth)}",
                f"if {inner}{end}then {other}{end}fi",
                f"if {self._simple(0)}; then {inner}{end}else {other}{end}fi",
                f"if {self._simple(0)}; then {inner}\nelif {self._simple(0)}; then\n{other}\nfi",
                f"for x in {self._word(depth)} {self._word(depth)}; do {inner}{end}done",
                f"for i in 1 2\ndo\n{inner}\ndone",
                f"while {self._simple(0)}; do {inner}{end}done",
                f"until {self._simple(0)}\ndo {inner}{end}done",
                f"case {self._word(0)} in x) {inner} ;; *) {other} ;; esac",
                f"case $x in\n  a|b*) {inner}\n  ;;\n  *)\n  {other}\n  ;;\nesac",
                f"x=$({inner}); {other}",
                f"x={self._word(depth)}\n{other}",
                f"cd d && {inner}",
                f"cd d; {inner}",
                f"(cd f && {inner}); {other}",
                f"cd nowhere || {inner}",
                f"{self._simple(0)} <<E\nl $x 'q\nE\n{other}",
                f"{self._simple(0)} <<'E'\nb $(c) `a\\\nE\n{other}",
                f'{self._simple(0)} <<-E | {self._simple(0)}\n\tl "\n\tE\n{other}',
                f"{{ {inner}; }} > o",
                f"{self._simple(0)} &\n{other}",
                f"[ {self._word(0)} = x ] && {inner}",
            ]
        )

    def _simple(self, depth: int) -> str:
        words = [self._pick(PROGRAMS)]
        words.extend(self._word(depth) for _ in range(self._random.choice([0, 1, 1, 2, 3])))
        if self._random.random() < 0.15:
            redirect = self._pick([">o", "> o2", ">>o", "2>&1", "2>e", ">&2"])
            words.insert(self._random.randrange(len(words) + 1), redirect)
        if self._random.random() < 0.06:
            words.insert(0, self._pick(["y=1", "CI=1", "x='a b'", "y=$x"]))
        return self._pick([" ", " ", " ", "  ", "\t", " \\\n  "]).join(words)

    def _word(self, depth: int) -> str:
        if depth > 0 and self._random.random() < 0.12:
            inner = self._list(depth - 1)
            return self._pick([f"$({inner})", f'"$({inner})"', f"`{inner}`", f'x"$({inner})"y'])
        return "".join(self._pick(_ARGUMENTS) for _ in range(self._random.choice([1, 1, 1, 1, 2])))

    def _broken(self, line: str) -> str:
        """Return a line with one thing put in, taken out, doubled, or with a stretch of another line in it."""
        place = self._random.randrange(len(line) + 1)
        width = self._random.choice([1, 1, 2, 5])
        way = self._random.randrange(6)
        if way < 3:
            return line[:place] + self._pick(_PIECES) + line[place:]
        if way == 3:
            return line[:place] + line[place + width :]
        if way == 4:
            return line[:place] + line[place : place + width] + line[place:]
        other = self._pick(self._corpus)
        cut = self._random.randrange(len(other) + 1)
        return line[:place] + self._pick(["", "\n", "; ", " "]) + other[cut : cut + 40]


_BUILT_IN = frozenset(
    """alias bg break case cd command continue declare do done echo elif else esac eval exec exit export false fc fg fi
    for function getopts hash history if in jobs kill let local printf pwd read readonly return select set shift source
    test then time times trap true type typeset ulimit umask unalias unset until wait while""".split()  # noqa: SIM905 - one name a line would take sixty
)
