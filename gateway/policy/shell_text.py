"""A position in a command line: gaps between words, keywords, and here-documents."""

import re

from gateway.policy.shell_line import Span
from gateway.policy.words import Opaque, Word, WordScan, names

NOT_WELL_FORMED = "it is not well-formed"
_RESERVED = names("""! [[ ]] { } case coproc do done elif else esac fi for function if in select then until while""")
_KEYWORD = re.compile(r"(?:[a-z]+|\[\[|[!{}])(?=[ \t\n;&|<>()]|\Z)")
# What a program may be called: nothing that a shell takes for an assignment, a job (%1) or a keyword.
_PROGRAM = re.compile(r"[A-Za-z0-9_./:][A-Za-z0-9_./:+@,-]*|\[")
_DELIMITER = re.compile(r"""[ \t]*(?:([A-Za-z_][\w.-]*)|'([\w.-]+)'|"([\w.-]+)")(?=[ \t\n;&|<>)]|\Z)""", re.ASCII)


class ShellText:
    """Where the reading stands. `limit` is the end of what is read: inside `...` its close."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.at = 0
        self.limit = len(source)
        self.substitutions = 0  # that the position is in
        self.documents: list[Span] = []
        self.pending: list[tuple[str, bool, bool]] = []  # here-documents: delimiter, quoted, tabs are cut off

    def next_is(self, text: str) -> bool:
        """Return whether a text stands next."""
        return self.source.startswith(text, self.at, self.limit)

    def take(self, text: str) -> None:
        """Go over a text. Raises Opaque unless it stands next."""
        if not self.next_is(text):
            raise Opaque(NOT_WELL_FORMED)
        self.at += len(text)

    def keyword(self) -> str | None:
        """Return the reserved word that stands next, where one may stand."""
        found = _KEYWORD.match(self.source, self.at, self.limit)
        return found.group() if found and found.group() in _RESERVED else None

    def expect(self, keyword: str) -> None:
        """Go over a reserved word. Raises Opaque unless it stands next."""
        if self.keyword() != keyword:
            raise Opaque(NOT_WELL_FORMED)
        self.at += len(keyword)

    def blanks(self) -> None:
        """Go over blanks, line continuations between words, and a comment."""
        while self.at < self.limit:
            if self.source[self.at] in " \t":
                self.at += 1
            elif self.next_is("\\\n"):
                if self.pending:
                    raise Opaque("a line goes on with a backslash before its here-document")
                self.at += 2
            elif self.next_is("#"):
                if self.substitutions:
                    raise Opaque("it has a comment inside $(...) or `...`")
                self.at = self._line_end()
            else:
                return

    def lines(self) -> None:
        """Go over blanks, comments, newlines, and the here-documents that stand behind a newline."""
        self.blanks()
        while self.next_is("\n"):
            self.at += 1
            for delimiter, quoted, cut in self.pending:
                self._document(delimiter, quoted=quoted, cut=cut)
            self.pending.clear()
            self.blanks()

    def here_document(self, start: int, *, cut: bool) -> None:
        """Read the delimiter of a here-document behind its operator, which is at `start`."""
        found = _DELIMITER.match(self.source, self.at, self.limit)
        if found is None or self.substitutions:
            raise Opaque("it uses a here-document in a form that is not understood")
        self.at = found.end()
        self.documents.append((start, self.at))
        self.pending.append((found.group(found.lastindex or 0), found.group(1) is None, cut))

    def _line_end(self) -> int:
        end = self.source.find("\n", self.at, self.limit)
        return end if end >= 0 else self.limit

    def _document(self, delimiter: str, *, quoted: bool, cut: bool) -> None:
        """Read the body of a here-document, of which no line but the last is the delimiter."""
        start = self.at
        while self.at < self.limit:
            begin, end = self.at, self._line_end()
            self.at = min(end + 1, self.limit)
            text = self.source[begin:end]
            if (text.lstrip("\t") if cut else text) == delimiter:
                self.documents.append((start, end))
                return
            if not quoted:
                self._check_body(begin, end)
        raise Opaque("a here-document does not end")

    def _check_body(self, position: int, end: int) -> None:
        """Raise Opaque unless a line of an unquoted here-document is text and variables."""
        text = WordScan(self.source, end, _no_commands_in_documents)
        while position < end:
            character = self.source[position]
            if character == "\\":
                if position + 1 == end:
                    raise Opaque("a line of a here-document ends in a backslash; quote its delimiter")
                position += 2
            elif character in "$`":
                position = text.expansion_end(position) or position + 1
            else:
                position += 1


def _no_commands_in_documents(_position: int, _quoted: bool) -> int:
    raise Opaque("a here-document runs commands; quote its delimiter")


def check_program(word: Word) -> None:
    """Raise Opaque unless the first word of a command is the name of a program."""
    if word.kind == "glob":
        raise Opaque("the name of a program is a file name pattern")
    if word.kind != "literal":
        raise Opaque("the name of a program is not known before it runs")
    if word.text in _RESERVED or not _PROGRAM.fullmatch(word.text):
        raise Opaque(f"{word.text!r} stands where the name of a program should")
