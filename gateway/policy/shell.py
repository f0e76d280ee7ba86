"""A shell command line, taken apart: simple commands and redirects, or the reason why it is opaque.

tree-sitter-bash reads the line, but the tool runs /bin/sh, and neither is trusted to agree with the other. So only
plain nodes are understood (commands, `;`, `&&`, `||`, `|`, newlines, literal words, redirects to literal files), and
then the bytes are counted: every byte must belong to a word, an operator, or a gap that may stand there. From words and
gaps alone the line is cut into commands a second time, by the shell's own grammar for so small a language; where the
tree says otherwise (some releases join `cmd | head -30` with the line after it) the line is opaque.

An opaque line still lists the commands that were seen in it, so that deny rules can match them. They are no promise.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import tree_sitter
import tree_sitter_bash

from gateway.policy.words import Opaque, Word, read_word

LIMIT_BYTES = 32 * 1024
LIMIT_COMMANDS = 256
LIMIT_NODES = 4096
LIMIT_PARSE_S = 0.025  # CPU time; a line of plain commands takes well under a millisecond

_LANGUAGE = tree_sitter.Language(tree_sitter_bash.language())
_STRUCTURE = frozenset({"program", "list", "pipeline", "redirected_statement"})
_WORDS = frozenset({"word", "number", "string", "raw_string", "concatenation"})
_SEPARATORS = frozenset({";", "&&", "||", "|"})
_REDIRECTS = {">": True, ">>": True, "<": False}
_KEYWORDS = frozenset(
    [
        "!",
        "[[",
        "]]",
        "{",
        "}",
        "case",
        "coproc",
        "do",
        "done",
        "elif",
        "else",
        "esac",
        "fi",
        "for",
        "function",
        "if",
        "in",
        "select",
        "then",
        "time",
        "until",
        "while",
    ]
)
# What a program may be called: nothing that a shell takes for an assignment, a job (%1) or a keyword.
_NAME = re.compile(r"[A-Za-z0-9_./:][A-Za-z0-9_./:+@,-]*")
_REASONS = {
    "ERROR": "it is not well-formed",
    "simple_expansion": "it expands a variable",
    "expansion": "it expands a variable",
    "command_substitution": "it runs a command inside another ($(...) or `...`)",
    "process_substitution": "it uses process substitution",
    "arithmetic_expansion": "it uses arithmetic",
    "brace_expression": "it uses brace expansion",
    "ansi_c_string": "it uses $'...'",
    "translated_string": 'it uses $"..."',
    "variable_assignment": "it assigns a variable",
    "variable_assignments": "it assigns a variable",
    "declaration_command": "it declares a variable",
    "unset_command": "it unsets a variable",
    "subshell": "it uses a subshell",
    "compound_statement": "it uses { }",
    "function_definition": "it defines a function",
    "heredoc_redirect": "it uses a here-document",
    "herestring_redirect": "it uses <<<",
    "negated_command": "it uses !",
    "test_command": "it uses [ or [[ (write test instead)",
    "if_statement": "it uses if",
    "for_statement": "it uses for",
    "c_style_for_statement": "it uses for",
    "while_statement": "it uses while",
    "case_statement": "it uses case",
    "&": "it runs something in the background (&)",
    "|&": "it uses |&",
}


@dataclass(frozen=True)
class Redirect:
    """A file that the shell opens: `target` as it is written, relative or absolute."""

    target: str
    writes: bool


@dataclass(frozen=True)
class ShellLine:
    """What a command line runs and opens, in order. `opaque` is None when that is all it does."""

    commands: tuple[tuple[Word, ...], ...] = ()
    redirects: tuple[Redirect, ...] = ()
    opaque: str | None = None


@dataclass(frozen=True)
class _Token:
    """A stretch of the line. `owner` is the tree's command for words, 0 for everything else."""

    kind: Literal["word", "redirect", "target", "separator", "comment"]
    start: int
    end: int
    owner: int = 0


def parse_line(command: str) -> ShellLine:
    """Take a command line apart. Never raises: what is not understood is opaque."""
    reason = _unreadable(command)
    if reason is not None:
        return ShellLine(opaque=reason)
    source = command.encode()
    deadline_s = time.thread_time() + LIMIT_PARSE_S

    def read_from(offset: int, _point: tree_sitter.Point) -> bytes:
        return source[offset:]

    def too_long(_offset: int, _has_error: bool) -> bool:
        return time.thread_time() > deadline_s

    try:
        # Some nested nonsense costs the parser seconds (`a=(a=(a=(...`), and it would hold up every tenant's calls.
        tree = tree_sitter.Parser(_LANGUAGE).parse(read_from, progress_callback=too_long)
    except ValueError:
        return ShellLine(opaque="it takes too long to parse")
    return _Reading(source).read(tree.root_node)


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


class _Reading:
    """One pass over a tree: collects what is seen, and the first reason why it is not all."""

    def __init__(self, source: bytes) -> None:
        self._source = source
        self._tokens: list[_Token] = []
        self._commands: dict[int, list[Word]] = {}
        self._redirects: list[Redirect] = []
        self._opaque: str | None = None

    def read(self, root: tree_sitter.Node) -> ShellLine:
        pending = [root]
        nodes = 0
        while pending:
            node = pending.pop()
            nodes += 1 + node.child_count
            if len(self._commands) > LIMIT_COMMANDS or nodes > LIMIT_NODES:
                self._refuse(f"it has more than {LIMIT_COMMANDS} commands or {LIMIT_NODES} parts")
                break
            pending.extend(reversed(list(self._visit(node))))
        if root.has_error:
            self._refuse(_REASONS["ERROR"])
        if self._opaque is None:
            self._opaque = _disagreement(self._source, sorted(self._tokens, key=lambda token: token.start))
        commands = tuple(tuple(words) for words in self._commands.values())
        return ShellLine(commands, tuple(self._redirects), self._opaque)

    def _refuse(self, reason: str) -> None:
        self._opaque = self._opaque or reason

    def _visit(self, node: tree_sitter.Node) -> Iterator[tree_sitter.Node]:
        """Take in a node and yield the nodes inside it that are still to be read."""
        if node.type in _STRUCTURE:
            yield from node.children
        elif node.type == "command":
            yield from self._command(node)
        elif node.type == "file_redirect":
            yield from self._redirect(node)
        elif node.type == "comment":
            self._tokens.append(_Token("comment", node.start_byte, node.end_byte))
        elif node.type in _SEPARATORS:
            self._tokens.append(_Token("separator", node.start_byte, node.end_byte))
        elif node.type != "\n":
            self._refuse(_REASONS.get(node.type, f"it uses {node.type.replace('_', ' ')}"))
            yield from node.children

    def _command(self, node: tree_sitter.Node) -> Iterator[tree_sitter.Node]:
        words = self._commands.setdefault(node.id, [])
        for child in node.children:
            if child.type == "command_name":
                words.append(self._word(child, "word", node.id))
                if words[-1].kind != "unknown":
                    self._check_name(words[-1])
            elif child.type in _WORDS:
                words.append(self._word(child, "word", node.id))
            else:
                if child.type not in ("file_redirect", "variable_assignment"):
                    words.append(Word(self._text(child), "unknown"))
                yield child
            if child.type in ("string", "concatenation", "command_name"):
                yield from _nested(child)

    def _check_name(self, name: Word) -> None:
        if name.kind == "glob":
            self._refuse("the name of a program is a file name pattern")
        elif name.text in _KEYWORDS or not _NAME.fullmatch(name.text):
            self._refuse(f"{name.text!r} stands where the name of a program should")

    def _redirect(self, node: tree_sitter.Node) -> Iterator[tree_sitter.Node]:
        children = list(node.children)
        start = children[0].start_byte
        if children[0].type == "file_descriptor":
            descriptor = children.pop(0)
            if descriptor.end_byte - descriptor.start_byte != 1 or descriptor.end_byte != children[0].start_byte:
                self._refuse("it redirects a descriptor above 9")
        operator, *targets = children
        self._tokens.append(_Token("redirect", start, operator.end_byte))
        if len(targets) != 1 or targets[0].type not in _WORDS:
            unclear = "a redirect is not followed by exactly one literal target"
            self._refuse(_REASONS.get(targets[0].type, unclear) if len(targets) == 1 else unclear)
            yield from targets
            return
        target = self._word(targets[0], "target", 0)
        yield from _nested(targets[0])
        if operator.type == ">&" and re.fullmatch("[0-9]", self._text(targets[0])):
            return
        if operator.type not in _REDIRECTS:
            self._refuse(f"it uses {operator.type}")
        elif target.kind != "literal" or not target.text:
            self._refuse("the target of a redirect is not literal")
        else:
            self._redirects.append(Redirect(target.text, _REDIRECTS[operator.type]))

    def _word(self, node: tree_sitter.Node, kind: Literal["word", "target"], owner: int) -> Word:
        self._tokens.append(_Token(kind, node.start_byte, node.end_byte, owner))
        text = self._text(node)
        try:
            return read_word(text)
        except Opaque as opaque:
            self._refuse(str(opaque))
            return Word(text, "unknown")

    def _text(self, node: tree_sitter.Node) -> str:
        return self._source[node.start_byte : node.end_byte].decode(errors="replace")


def _nested(node: tree_sitter.Node) -> Iterator[tree_sitter.Node]:
    """Yield the substitutions inside a word: the line is opaque, but what they run is seen."""
    pending = list(node.children)
    while pending:
        inner = pending.pop()
        if inner.type in ("command_substitution", "process_substitution"):
            yield inner
        else:
            pending.extend(inner.children)


def _disagreement(source: bytes, tokens: list[_Token]) -> str | None:
    """Cut the line into commands by its words and gaps alone; return why that does not give the tree's commands."""
    unclear = "the shell may split it in another way than it is read here"
    owners: set[int] = set()
    owner = 0  # the tree's command of the words since the last separator or newline
    started = False  # anything since then
    joined = False  # the last token is &&, || or |, which go on after newlines
    before: _Token | None = None
    for token in tokens:
        gap = source[before.end if before else 0 : token.start]
        if gap.strip(b" \t\n"):
            return unclear
        newline = b"\n" in gap
        tight = not gap and before is not None and before.kind != "separator"
        if before is not None and before.kind == "comment" and not newline:
            return unclear
        if before is not None and before.kind == "redirect":
            if token.kind != "target" or newline:
                return unclear
        elif token.kind == "target":
            return unclear
        elif newline and not joined:
            owner, started = 0, False
        if token.kind == "separator":
            if not started or newline or joined:
                return unclear
            joined = source[token.start : token.end] != b";"
            owner, started = 0, False
        elif token.kind == "comment":
            if joined or (before is not None and not gap) or b"\n" in source[token.start : token.end]:
                return unclear
        else:
            if token.kind == "word":
                if tight or (owner and token.owner != owner) or (not owner and token.owner in owners):
                    return unclear
                owner = token.owner
                owners.add(owner)
            elif token.kind == "redirect" and tight and re.search(rb"[0-9]", source[token.start - 1 : token.start + 1]):
                return unclear  # whether the digit is a descriptor or ends a word
            started, joined = True, False
        before = token
    if joined or (before is not None and before.kind == "redirect"):
        return unclear
    return unclear if source[before.end if before else 0 :].strip(b" \t\n") else None
