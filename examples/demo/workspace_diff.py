"""What the agent changed: a diff between the project and the thread's workspace."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from pathlib import Path

from rich.text import Text

from gateway.support.printable_text import printable

PROJECT = Path(__file__).parent / "project"


def is_source(path: str) -> bool:
    """Return whether a path is a source file, not a Python cache file."""
    return "__pycache__" not in Path(path).parts


def project_files() -> dict[str, bytes]:
    """Return the project's files by their path in it."""
    paths = (path for path in sorted(PROJECT.rglob("*")) if path.is_file())
    files = {path.relative_to(PROJECT).as_posix(): path for path in paths}
    return {name: path.read_bytes() for name, path in files.items() if is_source(name)}


def diff(before: Mapping[str, bytes], after: Mapping[str, bytes]) -> Iterator[Text]:
    """Yield the colored lines of a unified diff; files are named by their path in the project."""
    styles = {"+": "green", "-": "red", "@": "cyan"}
    for name in sorted(before.keys() | after.keys()):
        old, new = (side.get(name, b"").decode("utf-8", "replace").splitlines() for side in (before, after))
        old_name = f"a/{name}" if name in before else "/dev/null"
        new_name = f"b/{name}" if name in after else "/dev/null"
        for line in difflib.unified_diff(old, new, old_name, new_name, lineterm="", n=1):
            style = "bold" if line.startswith(("+++", "---")) else styles.get(line[:1], "dim")
            yield Text(printable(line).replace("\n", " "), style=style)
