"""Modules, classes and functions stay small. ruff limits parameters, statements and branches; this test the rest.

What has to be larger says why: a class or function in a comment `# large: ...` on its first line, a module in a line
`Large: ...` of its docstring.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[3]
MODULE_LINES, CLASS_METHODS, FUNCTION_LINES = 400, 25, 60


def _modules() -> Iterator[Path]:
    for package in ("agent", "gateway", "sandbox", "clients/python/airlock"):
        for path in (ROOT / package).rglob("*.py"):
            if "v1" not in path.parts:
                yield path


def _sized(path: Path) -> Iterator[tuple[str, bool, bool]]:
    """Yield a module, and each class and function in it: its name, whether it exceeds a limit, whether it says why."""
    source, name = path.read_text(encoding="utf-8"), path.relative_to(ROOT).as_posix()
    lines, tree = source.splitlines(), ast.parse(source)
    yield name, len(lines) > MODULE_LINES, "\nLarge: " in (ast.get_docstring(tree) or "")
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            large = sum(isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef) for one in node.body) > CLASS_METHODS
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            large = _lines(node) > FUNCTION_LINES
        else:
            continue
        head = lines[node.lineno - 1 : node.body[0].lineno - 1]
        yield f"{name}:{node.name}", large, any("  # large: " in line for line in head)


def _lines(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    return (node.end_lineno or node.lineno) - node.lineno + 1


@functools.cache
def _all() -> list[tuple[str, bool, bool]]:
    return [one for path in _modules() for one in _sized(path)]


def test_what_exceeds_a_limit_says_why_beside_it() -> None:
    assert [name for name, large, reasoned in _all() if large and not reasoned] == []


def test_every_reason_is_still_needed() -> None:
    assert [name for name, large, reasoned in _all() if reasoned and not large] == []
