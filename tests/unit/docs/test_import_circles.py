"""No modules import each other in a circle; imports in functions and for type checkers count."""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).parents[3]


def _modules() -> dict[str, Path]:
    found = {}
    roots = (ROOT, ROOT / "clients/python")
    tops = [(root, root / top) for root in roots for top in ("agent", "airlock", "gateway", "sandbox")]
    for root, path in ((root, path) for root, top in tops for path in top.rglob("*.py")):
        parts = path.relative_to(root).with_suffix("").parts
        if "v1" not in parts:
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def _imports(path: Path) -> set[str]:
    """Return every module that a file imports, and every `module.name`, which may be a module."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom):
            found |= {node.module or "", *(f"{node.module}.{name.name}" for name in node.names)}
        elif isinstance(node, ast.Import):
            found |= {name.name for name in node.names}
    return found


def _reached(module: str, graph: dict[str, set[str]]) -> set[str]:
    reached: set[str] = set()
    left = [module]
    while left:
        new = graph[left.pop()] - reached
        reached |= new
        left += new
    return reached


def test_there_are_no_circles() -> None:
    modules = _modules()
    packages = {name for name, path in modules.items() if path.name == "__init__.py"}
    graph = {name: (_imports(path) & modules.keys()) - packages - {name} for name, path in modules.items()}
    reached = {name: _reached(name, graph) for name in graph}
    circles = {
        frozenset(other for other in reached[name] if name in reached[other]) for name in graph if name in reached[name]
    }
    assert circles == set()
