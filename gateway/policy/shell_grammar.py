"""The first reading of a command line: the part of the POSIX shell grammar that all shells read alike.

A recursive descent over the bytes of the line. It understands lists, pipelines, groups, subshells, if, for, while,
until, case, redirects, here-documents, comments, harmless assignments and the words of words.py. Whatever else stands
in the line raises Opaque, with a reason; nothing is skipped and nothing is guessed.

On the way it follows where each `cd` leads (shell_builtins.py): what is read next starts in `_cwd`, and each production
returns where the shell may stand after it.
"""

import re
from dataclasses import replace

from gateway.policy.shell_builtins import NEVER, Places, after, may_move, union
from gateway.policy.shell_line import Directories, Redirect, ShellLine, SimpleCommand, Span, Unit
from gateway.policy.shell_text import NOT_WELL_FORMED, ShellText, check_program
from gateway.policy.words import Opaque, Word, WordScan, check_assigned

LIMIT_WORDS = 3000
LIMIT_COMMANDS = 256
LIMIT_NESTING = 24  # of compound commands and substitutions: far below what the stack holds

_ASSIGNMENT = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)(\+?=|\[)")
_REDIRECT = re.compile(r"([0-9]*)(<<<|<<-|<<|<>|<&|<|>>|>&|>\||>)")
_FILES = {">": True, ">>": True, "<": False}
_LOOP_NAME = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)(?=[ \t\n])")


class LineReader(ShellText):
    """Reads a line, given as its UTF-8 bytes decoded as latin-1, that starts in `cwd`: one method per rule.

    `units` are what it consists of, but for here-documents.
    """

    def __init__(self, source: str, cwd: Directories) -> None:
        super().__init__(source)
        self._cwd = cwd
        self._nesting = 0
        self._words = self._simple_commands = 0
        self._moves = 0  # commands read so far that may have moved this very shell
        self.units: list[Unit] = []
        self._commands: list[SimpleCommand] = []
        self._redirects: list[Redirect] = []

    def line(self) -> ShellLine:
        """Read all of it. Raises Opaque."""
        self.lines()
        if self.at < self.limit:
            self._list()
        if self.at != self.limit or self.pending:
            raise Opaque(NOT_WELL_FORMED)
        return ShellLine(tuple(self._commands), tuple(self._redirects))

    # Lists and pipelines

    def _list(self, *stops: str) -> Places:
        """Read commands up to a stop: a keyword, ")" or ";;", or the end."""
        self._nesting += 1
        if self._nesting > LIMIT_NESTING:
            raise Opaque("it nests commands too deep")
        places: Places | None = None
        self.lines()
        while not self._stops(stops):
            start, moves = self._cwd, self._moves
            places = self._chain()
            self.blanks()
            if self.next_is("&"):
                self.at += 1
                places, self._moves = (start, start), moves
            elif self.next_is(";") and not self.next_is(";;"):
                self.at += 1
            elif not self.next_is("\n"):
                break
            self._cwd = union(places)
            self.lines()
        self._nesting -= 1
        if places is None:
            raise Opaque(NOT_WELL_FORMED)
        return places

    def _stops(self, stops: tuple[str, ...]) -> bool:
        if self.at == self.limit:
            return True
        return self.keyword() in stops or any(self.next_is(stop) for stop in (")", ";;") if stop in stops)

    def _chain(self) -> Places:
        succeeded, failed = self._pipeline()
        self.blanks()
        while self.next_is("&&") or self.next_is("||"):
            goes_on = self.next_is("&&")
            self.at += 2
            self.lines()
            self._cwd = succeeded if goes_on else failed
            then = self._pipeline()
            if goes_on:
                succeeded, failed = then[0], union((failed, then[1]))
            else:
                succeeded, failed = union((succeeded, then[0])), then[1]
            self.blanks()
        return succeeded, failed

    def _pipeline(self) -> Places:
        negated = self.keyword() == "!"
        if negated:
            self.at += 1
            self.blanks()
        start = self._cwd
        places = self._command()
        if negated:
            places = places[1], places[0]
        self.blanks()
        while self.next_is("|") and not self.next_is("||"):
            self.at += 1
            if self.next_is("&"):
                raise Opaque("it uses |&")
            self.lines()
            self._cwd = start
            ends = union((start, *self._command()))  # some shells run the last part themselves
            places = ends, ends
            self.blanks()
        return places

    # Commands

    def _command(self) -> Places:
        keyword = self.keyword()
        if self.next_is("(("):
            raise Opaque("it uses (( ))")
        if not self.next_is("(") and keyword is None:
            return self._simple()
        self._nesting += 1
        start = self._cwd
        places = self._compound(keyword)
        self._nesting -= 1
        self._cwd = start
        opened = len(self._redirects)
        while self._redirect():
            pass
        # A redirect that fails keeps the body from running.
        return places if len(self._redirects) == opened else (places[0], union((places[1], start)))

    def _compound(self, keyword: str | None) -> Places:
        if keyword is None:
            self.take("(")
            self._subshell(")")
            self.take(")")
            return self._cwd, self._cwd
        if keyword not in {"{", "if", "while", "until", "for", "case"}:
            raise Opaque(f"{keyword!r} stands where the name of a program should")
        self.expect(keyword)
        if keyword == "{":
            places = self._list("}")
            self.expect("}")
            return places
        if keyword == "if":
            return self._branch()
        return self._case() if keyword == "case" else self._loop(keyword)

    def _subshell(self, *stops: str) -> None:
        """Read commands that move nothing outside of the shell that is started for them."""
        start, moves = self._cwd, self._moves
        self._list(*stops)
        self._cwd, self._moves = start, moves

    def _branch(self) -> Places:
        tested = self._list("then")
        self.expect("then")
        self._cwd = tested[0]
        then = self._list("elif", "else", "fi")
        self._cwd = tested[1]
        otherwise: Places = tested[1], NEVER
        if self.keyword() == "elif":
            self.expect("elif")
            self._nesting += 1
            otherwise = self._branch()
            self._nesting -= 1
        else:
            if self.keyword() == "else":
                self.expect("else")
                otherwise = self._list("fi")
            self.expect("fi")
        return union((then[0], otherwise[0])), union((then[1], otherwise[1]))

    def _loop(self, keyword: str) -> Places:
        """Read a loop. Where something in it may move the shell, it may run anywhere, and so may what comes after."""
        if keyword == "for":
            self._for()
        start, moves = self._cwd, self._moves
        commands, redirects = len(self._commands), len(self._redirects)
        if keyword != "for":
            self._list("do")
            self._cwd = start
        self.expect("do")
        self._list("done")
        self.expect("done")
        if self._moves == moves:
            return start, start
        self._commands[commands:] = [replace(command, cwd=None) for command in self._commands[commands:]]
        self._redirects[redirects:] = [replace(redirect, cwd=None) for redirect in self._redirects[redirects:]]
        return None, None

    def _for(self) -> None:
        """Read `NAME in WORDS` up to the `do`."""
        self.blanks()
        name = _LOOP_NAME.match(self.source, self.at, self.limit)
        if name is None:
            raise Opaque("a for loop is used in another form than for NAME in WORDS")
        check_assigned(name.group(1))
        self.at = name.end()
        self.blanks()
        self.expect("in")
        spans = [name.span(1)]
        while True:
            self.blanks()
            start, end = self._word(may_be_empty=True)[1]
            if start == end:
                break
            spans.append((start, end))
        if not self.next_is("\n"):
            self.take(";")
        self.units.append(("for", tuple(spans)))
        self.lines()

    def _case(self) -> Places:
        self.blanks()
        spans = [self._word()[1]]
        self.blanks()
        if self.next_is("\n"):
            raise Opaque("a case is used in a form that is not understood")
        self.expect("in")
        self.lines()
        start = self._cwd
        ends: list[Places] = [(start, NEVER)]
        while self.keyword() != "esac":
            self._patterns(spans)
            self.lines()
            if not self.next_is(";;"):
                self._cwd = start
                ends.append(self._list(";;", "esac"))
            self.lines()
            if self.next_is(";;"):
                self.at += 2
                self.lines()
            elif self.keyword() != "esac":
                raise Opaque(NOT_WELL_FORMED)
        self.expect("esac")
        self.units.append(("case", tuple(spans)))
        return union(end[0] for end in ends), union(end[1] for end in ends)

    def _patterns(self, spans: list[Span]) -> None:
        """Read the patterns of a branch and the ")" behind them."""
        if self.next_is("("):
            raise Opaque("a case is used in a form that is not understood")
        while True:
            self.blanks()
            word, span = self._word()
            if word.kind == "expansion":
                raise Opaque("a pattern of a case is not literal")
            spans.append(span)
            self.blanks()
            if not self.next_is("|"):
                break
            self.at += 1
        self.take(")")

    def _simple(self) -> Places:
        self._simple_commands += 1
        if self._simple_commands > LIMIT_COMMANDS:
            raise Opaque(f"it has more than {LIMIT_COMMANDS} commands")
        words: list[Word] = []
        spans: list[Span] = []
        assigned: list[tuple[str, str | None]] = []
        opened = len(self._redirects)
        while True:
            if self._redirect():
                continue
            if self.at == self.limit or self.source[self.at] in "\n;&|)":
                break
            if not words and (given := self._assignment(spans)) is not None:
                assigned.append(given)
                continue
            word, span = self._word()
            # time is a keyword to some shells and a program to others
            if not words or (len(words) == 1 and words[0].text == "time"):
                check_program(word)
            words.append(word)
            spans.append(span)
        for name, value in assigned:
            # `IFS= read` is how a line is read whole, and IFS holds for that command only.
            if name != "IFS" or not words or words[0].text != "read":
                check_assigned(name, value)
        if spans:
            self.units.append(("command", tuple(spans)))
        elif len(self._redirects) == opened:
            raise Opaque(NOT_WELL_FORMED)
        if not words:
            return self._cwd, self._cwd
        # What is never reached gets no promise about where it runs.
        self._commands.append(SimpleCommand(tuple(words), self._cwd or None))
        self._moves += may_move(words)
        return after(words, self._cwd)

    def _assignment(self, spans: list[Span]) -> tuple[str, str | None] | None:
        """Read `NAME=value` if it stands next, and return its name and its value where that is known."""
        found = _ASSIGNMENT.match(self.source, self.at, self.limit)
        if found is None:
            return None
        if found.group(2) != "=":
            raise Opaque("it assigns in a form that not every shell has")
        start, self.at = self.at, found.end()
        value = self._word(may_be_empty=True)[0].literal
        if self.next_is("("):
            raise Opaque("it assigns an array")
        spans.append((start, self.at))
        return found.group(1), value

    # Words and redirects

    def _word(self, *, may_be_empty: bool = False) -> tuple[Word, Span]:
        start = self.at
        self._words += 1
        if self._words > LIMIT_WORDS:
            raise Opaque(f"it has more than {LIMIT_WORDS} words")
        word, end = WordScan(self.source, self.limit, self._substitution).word(start)
        if self.pending and "\n" in self.source[start:end]:
            raise Opaque("a word goes over the line end before a here-document")
        self.at = end
        if end > start and self.source[end - 1].isdigit() and (self.next_is("<") or self.next_is(">")):
            raise Opaque("the shell may split it in another way than it is read here")
        if end == start and not may_be_empty:
            raise Opaque("it uses ( ) in a form that is not understood" if self.next_is("(") else NOT_WELL_FORMED)
        return word, (start, end)

    def _redirect(self) -> bool:
        """Read a redirect if one stands next."""
        self.blanks()
        if self.next_is("&>"):
            raise Opaque("it uses &>; write > FILE 2>&1")
        found = _REDIRECT.match(self.source, self.at, self.limit)
        if found is None:
            return False
        descriptor, operator = found.groups()
        start, self.at = self.at + len(descriptor), found.end()
        if len(descriptor) > 1:
            raise Opaque("it redirects a descriptor above 9")
        if operator in {"<<", "<<-"}:
            if descriptor:
                raise Opaque("it uses a here-document in a form that is not understood")
            self.here_document(start, cut=operator == "<<-")
            return True
        self.blanks()
        if operator != ">&" and operator not in _FILES:
            raise Opaque(f"it uses {operator}")
        target, span = self._word()
        self.units.append(("redirect", ((start, start + len(operator)), span)))
        if operator != ">&":
            if not target.text or target.kind == "glob":
                raise Opaque("the target of a redirect is not literal")
            self._redirects.append(Redirect(target.literal, _FILES[operator], self._cwd or None))
        elif not re.fullmatch("[0-9]", self.source[slice(*span)]):
            raise Opaque("it uses >& with something else than a digit")
        return True

    def _substitution(self, position: int, quoted: bool) -> int:
        """Read the commands in $(...) or `...` as a list of their own."""
        if self.pending:
            raise Opaque("it runs a command inside a word of a line with a here-document")
        outer = self.at, self.limit
        self.substitutions += 1
        if self.source[position] == "`":
            end = self.source.find("`", position + 1, self.limit)
            if end < 0 or any(mark in self.source[position:end] for mark in ("\\", *('"' * quoted))):
                raise Opaque("it uses `...` with a backslash or with quotes in quotes; write $(...)")
            self.at, self.limit = position + 1, end
            self._subshell()
            if self.at != end:
                raise Opaque(NOT_WELL_FORMED)
        else:
            if self.source.startswith("$((", position):
                raise Opaque("it uses arithmetic with more than numbers")
            self.at = position + 2
            self._subshell(")")
            end = self.at
            self.take(")")
        self.substitutions -= 1
        self.at, self.limit = outer
        return end + 1
