"""A shell command line, taken apart: simple commands and redirects, or the reason why it is opaque.

The tool runs /bin/sh, and no reader of shell is trusted to agree with it. So two read the line, our grammar and
tree-sitter-bash, and it is understood only where both see the same words in the same commands and the same redirects.

tree-sitter-bash is other people's code, with other mistakes than ours. What has no place in units makes its reading
incomplete. An opaque line still lists the commands that were seen in it, so that deny rules can match them. They are no
promise.
"""

import re
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from itertools import dropwhile

import tree_sitter
import tree_sitter_bash

from gateway.policy.shell_grammar import LIMIT_COMMANDS, LineReader
from gateway.policy.shell_line import START, Directories, Redirect, ShellLine, SimpleCommand, Span, Unit
from gateway.policy.words import Opaque, Word, WordScan, names

LIMIT_BYTES = 32 * 1024

_DISAGREE = "the shell may split it in another way than it is read here"
_ASSIGNED = re.compile(r"[^\W\d]\w*\+?=")
_FILES = {">": True, ">>": True, "<": False, ">|": True, "&>": True, "&>>": True}
# Some nested nonsense costs this parser seconds (`a=(a=(a=(...`) and would hold up every tenant's calls. What our own
# reader understands never does; anything else is looked at in small pieces, for so long. (A parser that can be stopped
# must be given a callback, and py-tree-sitter 0.26 keeps all that a callback ever returned.)
_PIECE_BYTES = 1000
_LOOK_S = 0.025  # CPU time; an everyday line takes about a millisecond
LIMIT_NODES = 8192

_LANGUAGE = tree_sitter.Language(tree_sitter_bash.language())
_STRUCTURE = names(
    """program list pipeline redirected_statement subshell compound_statement negated_command if_statement elif_clause
    else_clause while_statement do_group command_substitution"""
)
_SILENT = names("""comment ; & && || | ! { } ( ) ;; if then elif else fi while until do done for in case esac $( `""")
_SILENT |= {"\n"}
_REDIRECTS = frozenset({"file_redirect", "herestring_redirect", "heredoc_redirect"})
_INSIDE = _REDIRECTS | {"command_substitution", "process_substitution", "do_group"}
_TESTS = frozenset(
    ["unary_expression", "binary_expression", "parenthesized_expression", "negation_expression", "test_operator"]
)


def parse_line(command: str, cwd: Directories = START) -> ShellLine:
    """Take apart a command line that starts in `cwd`. Never raises: what is not understood is opaque."""
    reason = _unreadable(command)
    if reason is not None:
        return ShellLine(opaque=reason)
    source = command.encode()
    reader = LineReader(source.decode("latin-1"), cwd)
    try:
        line = reader.line()
    except Opaque as opaque:
        return _seen(source, str(opaque))
    units, complete = read_units(_without(source, reader.documents))
    if not complete or sorted(reader.units) != sorted(units):
        seen = _seen(source, _DISAGREE)
        return ShellLine((*line.commands, *seen.commands), (*line.redirects, *seen.redirects), _DISAGREE)
    if len(line.commands) + len(line.redirects) > LIMIT_COMMANDS:
        return ShellLine(line.commands[:LIMIT_COMMANDS], (), f"it has more than {LIMIT_COMMANDS} commands")
    return line


def _unreadable(command: str) -> str | None:
    """Return why a line must not even be parsed."""
    try:
        size_bytes = len(command.encode())
    except UnicodeEncodeError:
        return "it is not valid text"
    if size_bytes > LIMIT_BYTES:
        return f"it is longer than {LIMIT_BYTES} bytes"
    if not command.strip(" \t\n"):
        return "it is empty"
    if command.startswith(("-", "+")):
        return "it starts with - or +, which the shell takes for options of its own"
    for character in command:
        if not (character.isprintable() or character in "\t\n"):
            return f"it contains the character U+{ord(character):04X}, which shells do not all read alike"
    return None


def _without(source: bytes, documents: list[Span]) -> bytes:
    """Return the line with blanks for its here-documents: our reading of those is checked against real shells only."""
    blanked = bytearray(source)
    for start, end in documents:
        blanked[start:end] = re.sub(rb"[^\n]", b" ", blanked[start:end])
    return bytes(blanked)


def _seen(source: bytes, reason: str) -> ShellLine:
    """Return an opaque line with what tree-sitter-bash sees in it."""
    commands: list[SimpleCommand] = []
    redirects: list[Redirect] = []
    for kind, texts in look_for_units(source):
        if len(commands) + len(redirects) >= LIMIT_COMMANDS:
            break
        words = tuple(map(_word, texts))
        if kind == "command":
            words = tuple(dropwhile(lambda word: _ASSIGNED.match(word.text), words))
            commands += [SimpleCommand(words, None)] if words else []
        elif kind == "redirect" and texts[0] in _FILES:
            redirects.append(Redirect(words[1].literal, _FILES[texts[0]], None))
    return ShellLine(tuple(commands), tuple(redirects), reason)


def _word(text: str) -> Word:
    source = text.encode().decode("latin-1")
    with suppress(Opaque):
        word, end = WordScan(source, len(source), _unread).word(0)
        if end == len(source):
            return word
    return Word(text, "unknown")


def _unread(_position: int, _quoted: bool) -> int:
    raise Opaque("commands in a word are units of their own")


def read_units(source: bytes) -> tuple[tuple[Unit, ...], bool]:
    """Return what tree-sitter-bash sees in a line that our own reader understands, and whether that is all of it."""
    tree = tree_sitter.Parser(_LANGUAGE).parse(source)
    walk = _Walk()
    walk.run(tree.root_node)
    units = tuple((kind, tuple(spans)) for kind, spans in walk.found if spans)
    return units, walk.complete and not tree.root_node.has_error


def look_for_units(source: bytes) -> Iterator[tuple[str, list[str]]]:
    """Yield what can be seen in a line that is not understood: units, with the texts of their words.

    Good enough to find denied commands in it, and for nothing else.
    """
    deadline_s = time.thread_time() + _LOOK_S
    start = 0
    while start < len(source) and time.thread_time() < deadline_s:
        end = len(source)
        if end - start > _PIECE_BYTES:
            end = max(source.rfind(mark, start, start + _PIECE_BYTES) + 1 for mark in (b"\n", b";")) or start
            end = end if end > start else start + _PIECE_BYTES
        piece, start = source[start:end], end
        for kind, spans in read_units(piece)[0]:
            yield kind, [piece[slice(*span)].decode(errors="replace") for span in spans]


class _Walk:
    """One pass over a tree."""

    def __init__(self) -> None:
        self.complete = True
        self.found: list[tuple[str, list[Span]]] = []
        # The command that a word behind a redirect belongs to (`echo >&2 text`), None when there is none.
        self._last: list[Span] | None = None

    def run(self, root: tree_sitter.Node) -> None:
        pending = [root]
        nodes = 0
        while pending:
            node = pending.pop()
            nodes += 1 + node.child_count
            if nodes > LIMIT_NODES:
                self.complete = False
                return
            pending.extend(reversed(list(self._visit(node))))

    def _visit(self, node: tree_sitter.Node) -> Iterable[tree_sitter.Node]:
        """Take in a node and return the nodes inside it that are still to be read."""
        match node.type:
            case kind if kind in _STRUCTURE:
                return node.children
            case "command" | "declaration_command" | "unset_command" | "test_command":
                # A [ ... ] is an expression in the tree.
                words = _outermost(node.children, lambda child: child.type not in _TESTS or not child.child_count)
                self._last = self._add("command", (word for word in words if word.type not in _REDIRECTS))
            case "variable_assignment":
                self._add("command", [node])
            case "variable_assignments":
                self._add("command", node.children)
            case "file_redirect":
                self._redirect(node)
            case "for_statement":
                self._add("for", (child for child in node.children if child.type not in _SILENT | {"do_group"}))
            case "case_statement":
                return self._case(node)
            case kind if kind not in _SILENT:
                self.complete = False
                return node.children
        return _inside(node.children)

    def _add(self, kind: str, words: Iterable[tree_sitter.Node]) -> list[Span]:
        spans = [_span(word) for word in words]
        self.found.append((kind, spans))
        return spans

    def _redirect(self, node: tree_sitter.Node) -> None:
        operator, *words = (child for child in node.children if child.type != "file_descriptor")
        if not words:
            self.complete = False
            return
        self._add("redirect", [operator, words[0]])
        if words[1:]:
            if self._last is None:
                self._last = self._add("command", [])
            self._last.extend(_span(word) for word in words[1:])

    def _case(self, node: tree_sitter.Node) -> Iterator[tree_sitter.Node]:
        spans = self._add("case", [])
        for child in node.children:
            if child.type == "case_item":
                end = next(
                    (place for place, inner in enumerate(child.children) if inner.type == ")"), child.child_count
                )
                spans.extend(_span(inner) for inner in child.children[:end] if inner.type not in {"|", "("})
                yield from child.children[end + 1 :]
            elif child.type not in _SILENT:
                spans.append(_span(child))
                yield from _inside([child])


def _span(node: tree_sitter.Node) -> Span:
    return node.start_byte, node.end_byte


def _inside(nodes: Iterable[tree_sitter.Node]) -> Iterator[tree_sitter.Node]:
    """Yield the commands and redirects inside nodes, and the body of a loop."""
    return _outermost(nodes, lambda node: node.type in _INSIDE)


def _outermost(
    nodes: Iterable[tree_sitter.Node], wanted: Callable[[tree_sitter.Node], bool]
) -> Iterator[tree_sitter.Node]:
    """Yield what is wanted of nodes and all below them, and nothing that is inside of it."""
    pending = [*nodes][::-1]
    while pending:
        node = pending.pop()
        if wanted(node):
            yield node
        else:
            pending.extend(reversed(node.children))
