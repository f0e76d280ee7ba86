"""YAML read as plain data, with the line of every field.

Only what a policy needs: one document of mappings, sequences and plain scalars. Anchors, aliases, merge keys and tags
are refused (an alias can name a billion entries), and so are duplicate keys, which YAML readers resolve in silence.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import yaml

LIMIT_DEPTH = 20

_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_SCALARS = frozenset(f"tag:yaml.org,2002:{name}" for name in ("str", "int", "float", "bool", "null", "timestamp"))

Path = tuple[str | int, ...]


@dataclass(frozen=True)
class Problem(Exception):
    """One thing wrong with a file. `line` counts from 1; `field` is as in rules[2].paths[0], "" for the file."""

    line: int
    field: str
    message: str

    @property
    def text(self) -> str:
        """The problem in words, with the field where it is about one."""
        return f"{self.field}: {self.message}" if self.field else self.message


def field_of(path: Path) -> str:
    """Return a place of a file as people write it: rules[2].paths[0]."""
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path).lstrip(".")


@dataclass
class YamlReading:
    """Plain data (dict, tuple, str, int, float, bool, None), the line of each path, and what was wrong."""

    data: object = None
    lines: dict[Path, int] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)

    def line(self, path: Path) -> int:
        """Return the line of a path, or of what is nearest around it."""
        while path and path not in self.lines:
            path = path[:-1]
        return self.lines.get(path, 1)


def read_yaml(text: str) -> YamlReading:
    """Read one document. Never raises: what is wrong is in `problems`."""
    reading = YamlReading()
    try:
        _check_events(yaml.parse(text, Loader=_Loader))
        node = yaml.compose(text, Loader=_Loader)
        if node is None:
            raise Problem(1, "", "the file is empty; a policy starts with version: 1")
        reading.data = _value(node, (), reading, _Loader(""))
    except Problem as problem:
        reading.problems.append(problem)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        message = f"not valid YAML: {error.problem or error.context}"
        reading.problems.append(Problem(mark.line + 1 if mark else 1, "", message))
    except (yaml.YAMLError, ValueError, OverflowError) as error:
        reading.problems.append(Problem(1, "", f"not valid YAML: {str(error).splitlines()[0]}"))
    return reading


def written_twice(node: yaml.MappingNode, path: Path = ()) -> Iterator[Problem]:
    """Yield the fields of a mapping that are there already, which YAML readers resolve in silence."""
    first: dict[str, int] = {}
    for key_node, _ in node.value:
        if isinstance(key_node, yaml.ScalarNode):
            key, line = key_node.value, key_node.start_mark.line + 1
            if key in first:
                yield Problem(
                    line, field_of((*path, key)), f"written twice; the first is in line {first[key]}. Keep one"
                )
            first.setdefault(key, line)


def _check_events(events: Iterator[Any]) -> None:
    """Raise Problem for what must not even be composed."""
    depth = documents = 0
    for event in events:
        line = event.start_mark.line + 1
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None) is not None:
            raise Problem(line, "", "anchors (&) and aliases (*) are not allowed; write the value out or quote it")
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
            if depth > LIMIT_DEPTH:
                raise Problem(line, "", f"nested deeper than {LIMIT_DEPTH} levels")
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        elif isinstance(event, yaml.DocumentStartEvent):
            documents += 1
            if documents > 1:
                raise Problem(line, "", "a second document starts here (---); a policy must be one document")


def _value(node: yaml.Node, path: Path, reading: YamlReading, loader: Any) -> object:
    """Return the plain data of a node, and note its line."""
    line = node.start_mark.line + 1
    reading.lines.setdefault(path, line)
    if isinstance(node, yaml.SequenceNode) and node.tag == "tag:yaml.org,2002:seq":
        return tuple(_value(item, (*path, place), reading, loader) for place, item in enumerate(node.value))
    if isinstance(node, yaml.ScalarNode) and node.tag in _SCALARS:
        return node.value if node.tag.endswith(":timestamp") else loader.construct_object(node)
    if not isinstance(node, yaml.MappingNode) or node.tag != "tag:yaml.org,2002:map":
        raise Problem(line, field_of(path), f"the YAML tag {node.tag!r} is not allowed; write plain values")
    reading.problems += written_twice(node, path)
    mapping: dict[str, object] = {}
    for key_node, value_node in node.value:
        line = key_node.start_mark.line + 1
        if not isinstance(key_node, yaml.ScalarNode):
            raise Problem(line, field_of(path), "a field's name must be plain text")
        key = key_node.value
        if key not in mapping:
            reading.lines[(*path, key)] = line
            mapping[key] = _value(value_node, (*path, key), reading, loader)
    return mapping
