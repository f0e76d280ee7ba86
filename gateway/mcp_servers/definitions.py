"""The definitions of a server's tools, in the form that is pinned and that a model is shown.

A description is untrusted text that a model reads, so the characters that hide or disguise text are made visible; a
tool whose definition cannot be shown or checked is left out, with the reason.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from typing import Any, Self

from pydantic import JsonValue

from agent.capabilities.json_schema import MAX_SCHEMA_CHARS, checked
from agent.models.tool_names import wire_name
from gateway.support.printable_text import is_unprintable, printable

TOOLS_LIMIT = 128
_DESCRIPTION_LIMIT_CHARS = 8_000
_ALL_LIMIT_CHARS = 512 * 1024
_DEPTH_LIMIT = 32
_LOOKED_AT_LIMIT = 1_000
_STEP_CHARS = 4_000
# They are joined with each other, again and again.
_REFERENCES = frozenset({"$id", "$ref", "$anchor", "$dynamicRef", "$dynamicAnchor"})
_REFERENCE_LIMIT_CHARS = 1_000
_NAME = re.compile(r"[A-Za-z0-9_./-]{1,95}")
# Texts for people and models. Nothing is compared with them, so what cannot be shown may be replaced.
_TEXTS = frozenset({"title", "description", "$comment"})
_TYPES = (str, int, float, type(None))


@dataclass(frozen=True)
class Definition:
    """A tool of a server. `digest` covers all of it."""

    name: str
    description: str
    parameters: Mapping[str, JsonValue]

    @property
    def digest(self) -> str:
        return _digest([self.name, self.description, self.parameters])


@dataclass(frozen=True)
class Definitions:
    """The tools of a server by name, and why others were left out."""

    tools: Mapping[str, Definition]
    left_out: tuple[str, ...] = ()

    @cached_property
    def digest(self) -> str:
        return _digest(sorted(tool.digest for tool in self.tools.values()))

    def to_json(self) -> str:
        """Return the tools as they are stored."""
        stored = [vars(tool) for tool in self.tools.values()]
        return json.dumps(stored, sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Return what `to_json` wrote; no tools for ""."""
        tools = (Definition(**tool) for tool in json.loads(text or "[]"))
        return cls({tool.name: tool for tool in tools})

    @classmethod
    def reading(cls, listed: Iterable[Mapping[str, Any]]) -> Iterator[Self | None]:
        """Read a list that a server sent, as JSON: yield None now and then, and last the tools of the list.

        It takes a while: take each step in a thread.
        """
        tools: dict[str, Definition] = {}
        sent: set[str] = set()
        left_out: list[str] = []
        chars = looked_at = 0
        for tool in islice(listed, _LOOKED_AT_LIMIT):
            if chars - looked_at > _STEP_CHARS:
                looked_at = chars
                yield None
            name = str(tool.get("name", ""))
            try:
                chars += len(name) + len(str(tool.get("description"))) + len(str(tool.get("inputSchema")))
                if len(tools) == TOOLS_LIMIT or chars > _ALL_LIMIT_CHARS:  # each takes a while to check
                    limits = f"{TOOLS_LIMIT} tools, or {_ALL_LIMIT_CHARS:,} characters in all definitions"
                    raise ValueError(f"the server has more than {limits}")
                found = _definition(name, tool)
                if wire_name(f"_/{name}") in sent:
                    raise ValueError("another tool of the server has this name, or one that looks the same to a model")
            except ValueError as error:
                if len(left_out) < TOOLS_LIMIT:
                    left_out.append(f"{printable(name, 100)}: {error}")
                continue
            sent.add(wire_name(f"_/{name}"))
            tools[name] = found
        yield cls(tools, tuple(left_out))

    @classmethod
    def read(cls, listed: Iterable[Mapping[str, Any]]) -> Self:
        """Return the tools of a list at once."""
        return next(found for found in cls.reading(listed) if found is not None)


def list_digest(listed: Iterable[Mapping[str, Any]]) -> str:
    """Return a digest of a list that a server sent; one that has changed has another."""
    return _digest(list(listed))


def _definition(name: str, tool: Mapping[str, Any]) -> Definition:
    if not _NAME.fullmatch(name):
        raise ValueError("its name is not one to 95 of A-Z a-z 0-9 _ . / -")
    description = tool.get("description") or tool.get("title") or name
    if not isinstance(description, str) or len(description) > _DESCRIPTION_LIMIT_CHARS:
        raise ValueError(f"its description is not a text of at most {_DESCRIPTION_LIMIT_CHARS:,} characters")
    schema = tool.get("inputSchema")
    if not isinstance(schema, Mapping) or schema.get("type") != "object":
        raise ValueError("its inputSchema is not that of an object")
    properties = schema.get("properties", {})
    if not isinstance(properties, Mapping) or not all(isinstance(one, Mapping) for one in properties.values()):
        raise ValueError("its inputSchema has properties that are not schemas")
    parameters = _shown(schema, 0)
    assert isinstance(parameters, dict)  # noqa: S101 - it was a mapping
    if len(json.dumps(parameters)) > MAX_SCHEMA_CHARS:
        raise ValueError(f"its inputSchema has more than {MAX_SCHEMA_CHARS:,} characters")
    return Definition(name, printable(description), checked(parameters, compiles=False))


def _shown(value: Any, depth: int) -> JsonValue:
    """Return a copy of a schema in which all text can be shown."""
    if depth > _DEPTH_LIMIT:
        raise ValueError(f"its inputSchema is nested deeper than {_DEPTH_LIMIT} levels")
    if isinstance(value, Mapping):
        if any(len(value[name]) > _REFERENCE_LIMIT_CHARS for name in _REFERENCES if isinstance(value.get(name), str)):
            raise ValueError(f"its inputSchema has a reference of more than {_REFERENCE_LIMIT_CHARS:,} characters")
        return {
            _plain(key): printable(member) if key in _TEXTS and isinstance(member, str) else _shown(member, depth + 1)
            for key, member in value.items()
        }
    if isinstance(value, list):
        return [_shown(member, depth + 1) for member in value]
    if isinstance(value, str):
        return _plain(value)
    if not isinstance(value, _TYPES):
        raise ValueError("its inputSchema is not JSON")  # noqa: TRY004 - as all that is wrong with a definition
    return value


def _plain(text: object) -> str:
    if not isinstance(text, str) or any(map(is_unprintable, text)):
        raise ValueError("its inputSchema has a name or a value with characters that cannot be shown")
    return text


def _digest(value: object) -> str:
    canonical = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()
