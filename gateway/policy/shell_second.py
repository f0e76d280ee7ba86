"""The second reading of a command line, by tree-sitter-bash: other people's code, with other mistakes than ours.

It gives the same units as shell_grammar.py, or None where its tree holds anything that has no place in them.
"""

import time
from collections.abc import Iterable, Iterator

import tree_sitter
import tree_sitter_bash

from gateway.policy.shell_line import Span, Unit
from gateway.policy.words import names

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


def read_units(source: bytes) -> tuple[tuple[Unit, ...], bool]:
    """Return what tree-sitter-bash sees in a line that our own reader understands, and whether that is all of it."""
    tree = tree_sitter.Parser(_LANGUAGE).parse(source)
    walk = _Walk()
    walk.run(tree.root_node)
    return tuple(walk.units()), walk.complete and not tree.root_node.has_error


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
        self._found: list[tuple[str, list[Span]]] = []
        # The command that a word behind a redirect belongs to (`echo >&2 text`), None when there is none.
        self._last: list[Span] | None = None

    def units(self) -> Iterator[Unit]:
        return ((kind, tuple(spans)) for kind, spans in self._found if spans)

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
                children = _leaves(node) if node.type == "test_command" else node.children
                self._last = self._add("command", (child for child in children if child.type not in _REDIRECTS))
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
        self._found.append((kind, spans))
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


def _leaves(node: tree_sitter.Node) -> Iterator[tree_sitter.Node]:
    """Yield the words of a [ ... ], which the tree holds as an expression."""
    pending = list(reversed(node.children))
    while pending:
        child = pending.pop()
        if child.type in _TESTS and child.child_count:
            pending.extend(reversed(child.children))
        else:
            yield child


def _inside(nodes: Iterable[tree_sitter.Node]) -> Iterator[tree_sitter.Node]:
    """Yield the commands and redirects inside nodes, and the body of a loop."""
    pending = [*nodes][::-1]
    while pending:
        inner = pending.pop()
        if inner.type in _INSIDE:
            yield inner
        else:
            pending.extend(inner.children)
