"""The YAML mapping between two --- lines at the top of an untrusted file."""

from __future__ import annotations

from typing import Any

import yaml

LIMIT_BYTES = 4096
"""How much of a file is read, including the --- lines."""

_FENCE = "---"
_NESTING_LIMIT = 8


class _PlainLoader(yaml.SafeLoader):
    """Refuses YAML that is expensive to read and that frontmatter does not need.

    A few hundred bytes of aliases can expand to gigabytes, and nested brackets take quadratic time.
    """

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            raise yaml.MarkedYAMLError(
                problem="aliases are not taken here, write the value out", problem_mark=self.get_mark()
            )
        return super().compose_node(parent, index)

    def fetch_flow_collection_start(self, TokenClass: Any) -> None:  # noqa: N803 - as PyYAML has it
        if self.flow_level == _NESTING_LIMIT:
            raise yaml.MarkedYAMLError(
                problem=f"more than {_NESTING_LIMIT} open brackets are not taken here", problem_mark=self.get_mark()
            )
        super().fetch_flow_collection_start(TokenClass)


def frontmatter(head: str) -> dict[str, object]:
    """Return the mapping at the top of a file of which `head` is the first LIMIT_BYTES.

    Raises only ValueError; its message says what is wrong and may quote the text.
    """
    lines = [line.rstrip() for line in head.removeprefix("\ufeff").split("\n")]
    if lines[0] != _FENCE:
        raise ValueError("it has no frontmatter: the first line must be ---")
    if _FENCE not in lines[1:]:
        raise ValueError(f"no --- line ends its frontmatter within the first {LIMIT_BYTES} bytes")
    text = "\n".join(lines[1 : lines.index(_FENCE, 1)])
    try:
        mapping: object = yaml.load(text, Loader=_PlainLoader)  # noqa: S506 - a restricted SafeLoader
    except yaml.MarkedYAMLError as error:
        # Lines count from 1, and the first one is the fence.
        line = error.problem_mark.line + 2 if error.problem_mark is not None else 1
        hint = "; a value with a colon in it needs quotes" if "mapping values" in str(error.problem) else ""
        raise ValueError(f"its frontmatter is not YAML (line {line}: {error.problem}){hint}") from error
    except Exception as error:  # PyYAML also raises ValueError, KeyError, RecursionError ...
        raise ValueError(f"its frontmatter is not YAML ({type(error).__name__}: {error})") from error
    if not isinstance(mapping, dict):
        raise ValueError("its frontmatter is not a mapping, such as `name: tidy-up`")  # noqa: TRY004 - the text is at fault
    return {key: value for key, value in mapping.items() if isinstance(key, str)}
