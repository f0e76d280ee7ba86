"""What the pages point at is there: links, files, commands with their options, fields of the configuration."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from gateway.cli.main import app
from gateway.config.config import Config

ROOT = Path(__file__).parents[3]
PAGES = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]
OF_CONFIGURATION = ("identity.md", "telemetry.md", "storage.md", "operations.md")
_ROOMS = ("agent", "deploy", "docs", "examples", "gateway", "proto", "sandbox", "tests")
_LINK = re.compile(r"\]\(([^)\s]+)\)")
_FILE = re.compile(rf"`((?:{'|'.join(_ROOMS)})/[\w./*-]*)`")
_BLOCK = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```", re.DOTALL | re.MULTILINE)
_INLINE = re.compile(r"`(airlock [^`]+)`")
_TYPED = re.compile(r"(?:^|[$&;|`]|\s)(airlock [a-z].*)")
_LITTLE = {"tenants": {"default": {"policy": "a.yaml"}, "acme": {"policy": "a.yaml"}}}


def named(page: Path) -> str:
    return str(page.relative_to(ROOT))


def anchors(page: Path) -> set[str]:
    """Return what a heading is linked as: small letters, spaces as hyphens, without what is neither."""
    heads = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_each_link_leads_somewhere(page: Path) -> None:
    wrong = []
    for link in _LINK.findall(page.read_text(encoding="utf-8")):
        if link.startswith(("https://", "http://", "mailto:")):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            wrong.append(link)
    assert wrong == []


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_each_file_that_is_named_is_there(page: Path) -> None:
    files = _FILE.findall(page.read_text(encoding="utf-8"))
    made = ("gateway/v1", "sandbox/v1")  # by `make proto`, and proto/ has them under the same names
    assert [file for file in files if not list(ROOT.glob(file)) and not file.startswith(made)] == []


def commands(node: Any, path: str) -> Iterator[tuple[str, Any]]:
    yield path, node
    for name, child in getattr(node, "commands", {}).items():
        yield from commands(child, f"{path} {name}")


def typed(page: Path) -> Iterator[str]:
    """Return what a page has its readers type: lines of shell blocks, and commands in a sentence."""
    text = page.read_text(encoding="utf-8")
    for language, block in _BLOCK.findall(text):
        if language in {"sh", "console", ""}:
            for line in block.splitlines():
                yield from (found[1] for found in _TYPED.finditer(re.split(r"(?:^|\s)#\s", line)[0]))
    yield from _INLINE.findall(_BLOCK.sub("", text))


@pytest.mark.parametrize("page", [page for page in PAGES if page.name != "CHANGELOG.md"], ids=named)
def test_each_command_that_is_named_is_one(page: Path) -> None:
    there = dict(commands(typer.main.get_command(app), "airlock"))
    wrong = []
    for line in typed(page):
        words = re.sub(r"'[^']*'|\"[^\"]*\"", "TEXT", line).split()
        path = "airlock"
        while len(words) > 1 and f"{path} {words[1]}" in there:
            path = f"{path} {words.pop(1)}"
        options = {name for one in there[path].params for name in (*one.opts, *one.secondary_opts)}
        of_all = {"--help", "--install-completion", "--show-completion"}
        given = {word.partition("=")[0].rstrip(",;:") for word in words[1:] if re.match(r"--[a-z]", word)}
        if hasattr(there[path], "commands") and re.match(r"[a-z]", " ".join(words[1:2])):
            wrong.append(line)  # a group, and a word that is none of its commands
        elif given - options - of_all:
            wrong.append(f"{line}: {', '.join(sorted(given - options - of_all))}")
    assert wrong == []


@pytest.mark.parametrize("name", OF_CONFIGURATION)
def test_each_piece_of_configuration_loads(name: str) -> None:
    for language, block in _BLOCK.findall((ROOT / "docs" / name).read_text(encoding="utf-8")):
        if language == "yaml":
            Config.model_validate({**_LITTLE, **yaml.safe_load(block)})


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_each_piece_of_python_is_python(page: Path) -> None:
    for language, block in _BLOCK.findall(page.read_text(encoding="utf-8")):
        if language == "python":
            compile(block, str(page), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)


def test_the_recorded_demo_shows_the_refused_connection_and_loads_nothing() -> None:
    svg = (ROOT / "docs" / "demo.svg").read_text(encoding="utf-8")
    assert "(rule&#160;only-the-team-index)" in svg
    assert "approver:&#160;may&#160;it&#160;connect&#160;to&#160;127.0.0.2" in svg
    assert re.findall(r"url\((?!#)|href=|@import|<script", svg) == []
