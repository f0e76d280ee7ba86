"""The first reading of a command line: the part of the POSIX shell grammar that all shells read alike.

A recursive descent over the bytes of the line. It understands lists, pipelines, groups, subshells, if, for, while,
until, case, redirects, here-documents, comments, harmless assignments and the words of words.py. Whatever else stands
in the line raises Opaque, with a reason; nothing is skipped and nothing is guessed.

Large: the productions call each other, and share the position in the line.
"""

from __future__ import annotations

import re
from typing import Literal

from gateway.policy.shell_tree import (
    Branch,
    Chain,
    Choice,
    Compound,
    Loop,
    Node,
    Opened,
    Pipeline,
    Reading,
    Sequence,
    Simple,
    Span,
    Subshell,
    Unit,
)
from gateway.policy.variables import may_assign
from gateway.policy.words import Opaque, Word, scan_expansion, scan_word

LIMIT_WORDS = 3000
LIMIT_COMMANDS = 256
LIMIT_NESTING = 24  # of compound commands and substitutions: far below what the stack holds

_NOT_WELL_FORMED = "it is not well-formed"
_RESERVED = frozenset(
    """! [[ ]] { } case coproc do done elif else esac fi for function if in select then until while""".split()  # noqa: SIM905 - a list to read
)
_KEYWORD = re.compile(r"(?:[a-z]+|\[\[|[!{}])(?=[ \t\n;&|<>()]|\Z)")
# What a program may be called: nothing that a shell takes for an assignment, a job (%1) or a keyword.
_PROGRAM = re.compile(r"[A-Za-z0-9_./:][A-Za-z0-9_./:+@,-]*|\[")
_ASSIGNMENT = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)(\+?=|\[)")
_REDIRECT = re.compile(r"([0-9]*)(<<<|<<-|<<|<>|<&|<|>>|>&|>\||>)")
_FILES = {">": True, ">>": True, "<": False}
_DELIMITER = re.compile(r"""(?:([A-Za-z_][\w.-]*)|'([\w.-]+)'|"([\w.-]+)")(?=[ \t\n;&|<>)]|\Z)""", re.ASCII)
_LOOP_NAME = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)(?=[ \t\n])")
_BLANKS = " \t"


def read_line(source: str) -> Reading:
    """Return the tree of a line, given as its UTF-8 bytes decoded as latin-1. Raises Opaque."""
    return _Reader(source).line()


class _Reader:  # large: one method per rule of the grammar
    """Where the reading stands, and what it has seen. `_limit` is the end of what is read: inside `...` its close."""

    def __init__(self, source: str) -> None:
        self._source = source
        self._at = 0
        self._limit = len(source)
        self._nesting = 0
        self._words = self._commands = 0
        self._substitutions = 0
        self._units: list[Unit] = []
        self._pending: list[tuple[str, bool, bool]] = []  # here-documents: delimiter, quoted, tabs are cut off
        self._documents: list[Span] = []
        self._inner: list[Node] = []  # the commands whose output is in the words since the last query

    def line(self) -> Reading:
        self._lines()
        root: Node = self._list(frozenset()) if self._at < self._limit else Sequence(())
        if self._at != self._limit or self._pending:
            raise Opaque(_NOT_WELL_FORMED)
        return Reading(root, tuple(self._units), tuple(self._documents))

    # Characters and gaps

    def _next(self, text: str) -> bool:
        return self._source.startswith(text, self._at) and self._at + len(text) <= self._limit

    def _take(self, text: str) -> None:
        if not self._next(text):
            raise Opaque(_NOT_WELL_FORMED)
        self._at += len(text)

    def _blanks(self) -> None:
        """Go over blanks, line continuations between words, and a comment."""
        while self._at < self._limit:
            if self._source[self._at] in _BLANKS:
                self._at += 1
            elif self._next("\\\n"):
                if self._pending:
                    raise Opaque("a line goes on with a backslash before its here-document")
                self._at += 2
            elif self._next("#"):
                if self._substitutions:
                    raise Opaque("it has a comment inside $(...) or `...`")
                end = self._source.find("\n", self._at, self._limit)
                self._at = end if end >= 0 else self._limit
            else:
                return

    def _lines(self) -> None:
        """Go over blanks, comments, newlines, and the here-documents that stand behind a newline."""
        self._blanks()
        while self._next("\n"):
            self._at += 1
            for delimiter, quoted, cut in self._pending:
                self._document(delimiter, quoted=quoted, cut=cut)
            self._pending.clear()
            self._blanks()

    def _document(self, delimiter: str, *, quoted: bool, cut: bool) -> None:
        """Read the body of a here-document, of which no line but the last is the delimiter."""
        start = self._at
        while self._at < self._limit:
            end = self._source.find("\n", self._at, self._limit)
            end = end if end >= 0 else self._limit
            text = self._source[self._at : end]
            begin, self._at = self._at, min(end + 1, self._limit)
            if (text.lstrip("\t") if cut else text) == delimiter:
                self._documents.append((start, end))
                return
            if not quoted:
                self._check_body(begin, end)
        raise Opaque("a here-document does not end")

    def _check_body(self, position: int, end: int) -> None:
        """Raise Opaque unless a line of an unquoted here-document is text and variables."""
        while position < end:
            character = self._source[position]
            if character == "\\":
                if position + 1 == end:
                    raise Opaque("a line of a here-document ends in a backslash; quote its delimiter")
                position += 2
            elif character in "$`":
                position = scan_expansion(self._source, position, end, _no_commands_in_documents) or position + 1
            else:
                position += 1

    def _keyword(self) -> str | None:
        """Return the reserved word that stands next, where one may stand."""
        found = _KEYWORD.match(self._source, self._at, self._limit)
        return found.group() if found and found.group() in _RESERVED else None

    def _expect(self, keyword: str) -> None:
        if self._keyword() != keyword:
            raise Opaque(_NOT_WELL_FORMED)
        self._at += len(keyword)

    # Lists and pipelines

    def _list(self, stops: frozenset[str]) -> Sequence:
        """Read commands up to a stop: a keyword, ")" or ";;", or the end."""
        self._nesting += 1
        if self._nesting > LIMIT_NESTING:
            raise Opaque("it nests commands too deep")
        items: list[Node] = []
        self._lines()
        while not self._stops(stops):
            item = self._chain()
            self._blanks()
            if self._next("&"):
                self._at += 1
                item = Subshell(item)
            elif self._next(";") and not self._next(";;"):
                self._at += 1
            elif not self._next("\n"):
                items.append(item)
                break
            items.append(item)
            self._lines()
        self._nesting -= 1
        if not items:
            raise Opaque(_NOT_WELL_FORMED)
        return Sequence(tuple(items))

    def _stops(self, stops: frozenset[str]) -> bool:
        if self._at == self._limit:
            return True
        return self._keyword() in stops or any(self._next(stop) for stop in (")", ";;") if stop in stops)

    def _chain(self) -> Node:
        first = self._pipeline()
        rest: list[tuple[Literal["&&", "||"], Node]] = []
        self._blanks()
        while self._next("&&") or self._next("||"):
            operator: Literal["&&", "||"] = "&&" if self._next("&&") else "||"
            self._at += 2
            self._lines()
            rest.append((operator, self._pipeline()))
            self._blanks()
        return Chain(first, tuple(rest)) if rest else first

    def _pipeline(self) -> Node:
        negated = self._keyword() == "!"
        if negated:
            self._at += 1
            self._blanks()
        parts = [self._command()]
        self._blanks()
        while self._next("|") and not self._next("||"):
            self._at += 1
            if self._next("&"):
                raise Opaque("it uses |&")
            self._lines()
            parts.append(self._command())
            self._blanks()
        return Pipeline(tuple(parts), negated) if negated or len(parts) > 1 else parts[0]

    # Commands

    def _command(self) -> Node:
        keyword = self._keyword()
        if self._next("(("):
            raise Opaque("it uses (( ))")
        if not self._next("(") and keyword is None:
            return self._simple()
        self._nesting += 1
        opening, body = self._compound(keyword)
        self._nesting -= 1
        while self._redirect(opening):
            pass
        return Compound(opening, body)

    def _compound(self, keyword: str | None) -> tuple[Simple, Node]:
        opening = Simple()
        if keyword is None:
            self._take("(")
            body: Node = Subshell(self._list(frozenset({")"})))
            self._take(")")
        elif keyword == "{":
            self._expect("{")
            body = self._list(frozenset({"}"}))
            self._expect("}")
        elif keyword == "if":
            self._expect("if")
            body = self._branch()
        elif keyword in {"while", "until"}:
            self._expect(keyword)
            test = self._list(frozenset({"do"}))
            body = Loop((test, self._body()))
        elif keyword == "for":
            self._expect("for")
            self._for(opening)
            body = Loop((self._body(),))
        elif keyword == "case":
            self._expect("case")
            body = self._case(opening)
        else:
            raise Opaque(f"{keyword!r} stands where the name of a program should")
        return opening, body

    def _branch(self) -> Branch:
        test = self._list(frozenset({"then"}))
        self._expect("then")
        then = self._list(frozenset({"elif", "else", "fi"}))
        otherwise: Node | None = None
        if self._keyword() == "elif":
            self._expect("elif")
            self._nesting += 1
            otherwise = self._branch()
            self._nesting -= 1
            return Branch(test, then, otherwise)
        if self._keyword() == "else":
            self._expect("else")
            otherwise = self._list(frozenset({"fi"}))
        self._expect("fi")
        return Branch(test, then, otherwise)

    def _body(self) -> Node:
        self._expect("do")
        body = self._list(frozenset({"done"}))
        self._expect("done")
        return body

    def _for(self, opening: Simple) -> None:
        """Read `NAME in WORDS` up to the `do`."""
        self._blanks()
        name = _LOOP_NAME.match(self._source, self._at, self._limit)
        if name is None:
            raise Opaque("a for loop is used in another form than for NAME in WORDS")
        _check_name(name.group(1))
        self._at = name.end()
        self._blanks()
        self._expect("in")
        spans = [name.span(1)]
        while True:
            self._blanks()
            span = self._word()[1]
            if span[0] == span[1]:
                break
            spans.append(span)
            opening.inner.extend(self._drain())
        if not self._next("\n"):
            self._take(";")
        self._units.append(("for", tuple(spans)))
        self._lines()

    def _case(self, opening: Simple) -> Choice:
        self._blanks()
        spans = [self._full_word()[1]]
        opening.inner.extend(self._drain())
        self._blanks()
        if self._next("\n"):
            raise Opaque("a case is used in a form that is not understood")
        self._expect("in")
        self._lines()
        branches: list[Node] = []
        while self._keyword() != "esac":
            if self._next("("):
                raise Opaque("a case is used in a form that is not understood")
            while True:
                self._blanks()
                word, span = self._full_word()
                if word.kind == "expansion":
                    raise Opaque("a pattern of a case is not literal")
                spans.append(span)
                self._blanks()
                if not self._next("|"):
                    break
                self._at += 1
            self._take(")")
            self._lines()
            if not self._next(";;"):
                branches.append(self._list(frozenset({";;", "esac"})))
            self._lines()
            if self._next(";;"):
                self._at += 2
                self._lines()
            elif self._keyword() != "esac":
                raise Opaque(_NOT_WELL_FORMED)
        self._expect("esac")
        self._units.append(("case", tuple(spans)))
        return Choice(tuple(branches))

    def _simple(self) -> Simple:
        self._commands += 1
        if self._commands > LIMIT_COMMANDS:
            raise Opaque(f"it has more than {LIMIT_COMMANDS} commands")
        command = Simple()
        spans: list[Span] = []
        assigned: list[tuple[str, str | None]] = []
        while True:
            self._blanks()
            if self._redirect(command):
                continue
            if self._at == self._limit or self._source[self._at] in "\n;&|)":
                break
            if not command.words and (given := self._assignment(spans)) is not None:
                assigned.append(given)
                command.inner.extend(self._drain())
                continue
            word, span = self._full_word()
            if not command.words or _only_times(command.words):
                _check_program(word)
            command.words.append(word)
            command.inner.extend(self._drain())
            spans.append(span)
        for name, value in assigned:
            # `IFS= read` is how a line is read whole, and IFS holds for that command only.
            if name != "IFS" or not command.words or command.words[0].text != "read":
                _check_name(name, value)
        if spans:
            self._units.append(("command", tuple(spans)))
        elif not command.redirects:
            raise Opaque(_NOT_WELL_FORMED)
        return command

    def _assignment(self, spans: list[Span]) -> tuple[str, str | None] | None:
        """Read `NAME=value` if it stands next, and return its name and its value where that is known."""
        found = _ASSIGNMENT.match(self._source, self._at, self._limit)
        if found is None:
            return None
        if found.group(2) != "=":
            raise Opaque("it assigns in a form that not every shell has")
        start, self._at = self._at, found.end()
        value = self._word()[0].literal
        if self._next("("):
            raise Opaque("it assigns an array")
        spans.append((start, self._at))
        return found.group(1), value

    # Words and redirects

    def _word(self) -> tuple[Word, Span]:
        """Read a word, which may be empty. Its substitutions come into `_inner`."""
        start = self._at
        self._words += 1
        if self._words > LIMIT_WORDS:
            raise Opaque(f"it has more than {LIMIT_WORDS} words")
        word, end = scan_word(self._source, start, self._limit, self._substitution)
        if self._pending and "\n" in self._source[start:end]:
            raise Opaque("a word goes over the line end before a here-document")
        self._at = end
        if end > start and self._source[end - 1].isdigit() and (self._next("<") or self._next(">")):
            raise Opaque("the shell may split it in another way than it is read here")
        return word, (start, end)

    def _full_word(self) -> tuple[Word, Span]:
        word, span = self._word()
        if span[0] == span[1]:
            raise Opaque("it uses ( ) in a form that is not understood" if self._next("(") else _NOT_WELL_FORMED)
        return word, span

    def _drain(self) -> list[Node]:
        inner, self._inner = self._inner, []
        return inner

    def _redirect(self, command: Simple) -> bool:
        """Read a redirect if one stands next."""
        self._blanks()
        if self._next("&>"):
            raise Opaque("it uses &>; write > FILE 2>&1")
        found = _REDIRECT.match(self._source, self._at, self._limit)
        if found is None:
            return False
        descriptor, operator = found.groups()
        start, self._at = self._at + len(descriptor), found.end()
        if len(descriptor) > 1:
            raise Opaque("it redirects a descriptor above 9")
        if operator in {"<<", "<<-"}:
            self._here(start, descriptor, cut=operator == "<<-")
            return True
        self._blanks()
        if operator != ">&" and operator not in _FILES:
            raise Opaque(f"it uses {operator}")
        target, span = self._full_word()
        self._units.append(("redirect", ((start, start + len(operator)), span)))
        if operator != ">&":
            if not target.text or target.kind == "glob":
                raise Opaque("the target of a redirect is not literal")
            command.redirects.append(Opened(target, _FILES[operator]))
        elif not re.fullmatch("[0-9]", self._source[slice(*span)]):
            raise Opaque("it uses >& with something else than a digit")
        command.inner.extend(self._drain())
        return True

    def _here(self, start: int, descriptor: str, *, cut: bool) -> None:
        while self._at < self._limit and self._source[self._at] in _BLANKS:
            self._at += 1
        found = _DELIMITER.match(self._source, self._at, self._limit)
        if found is None or descriptor or self._substitutions:
            raise Opaque("it uses a here-document in a form that is not understood")
        self._at = found.end()
        self._documents.append((start, self._at))
        self._pending.append((found.group(found.lastindex or 0), found.group(1) is None, cut))

    def _substitution(self, position: int, quoted: bool) -> int:
        """Read the commands in $(...) or `...` as a list of their own."""
        outer = self._at, self._limit, self._inner, self._pending
        if self._pending:
            raise Opaque("it runs a command inside a word of a line with a here-document")
        self._inner, self._pending = [], []
        self._substitutions += 1
        if self._source[position] == "`":
            self._at = position + 1
            self._limit = self._close(position + 1, quoted=quoted)
            body = self._list(frozenset())
            end = self._limit
            if self._at != end:
                raise Opaque(_NOT_WELL_FORMED)
        else:
            if self._source.startswith("$((", position):
                raise Opaque("it uses arithmetic with more than numbers")
            self._at = position + 2
            body = self._list(frozenset({")"}))
            end = self._at
            if not self._next(")"):
                raise Opaque(_NOT_WELL_FORMED)
        self._substitutions -= 1
        self._at, self._limit, self._inner, self._pending = outer
        self._inner.append(Subshell(body))
        return end + 1

    def _close(self, start: int, *, quoted: bool) -> int:
        """Return where the ` that ends a substitution is."""
        end = self._source.find("`", start, self._limit)
        text = self._source[start:end]
        if end < 0 or "\\" in text or (quoted and '"' in text):
            raise Opaque("it uses `...` with a backslash or with quotes in quotes; write $(...)")
        return end


def _no_commands_in_documents(_position: int, _quoted: bool) -> int:
    raise Opaque("a here-document runs commands; quote its delimiter")


def _check_name(name: str, value: str | None = None) -> None:
    if not may_assign(name, value):
        raise Opaque(f"it assigns {name}, which may change what later words run; use a name in lower case")


def _only_times(words: list[Word]) -> bool:
    """Return whether a program is still to come: time is a keyword to some shells and a program to others."""
    return len(words) == 1 and words[0].text == "time"


def _check_program(word: Word) -> None:
    """Raise Opaque unless the first word of a command is the name of a program."""
    if word.kind == "glob":
        raise Opaque("the name of a program is a file name pattern")
    if word.kind != "literal":
        raise Opaque("the name of a program is not known before it runs")
    if word.text in _RESERVED or not _PROGRAM.fullmatch(word.text):
        raise Opaque(f"{word.text!r} stands where the name of a program should")
