"""Commands that take texts as they are.

Typer has pydantic convert each value, even a text into a text, and imports it for that: a quarter of what a call from
a shell costs.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from typer.core import TyperCommand, TyperGroup


@dataclass
class _Plain:
    """Stands for what converts the values of a parameter, which `made` makes."""

    made: Callable[[], Any]

    def coerce(self, value: Any, param: Any, ctx: Any) -> Any:
        is_text = isinstance(value, str) and param.type_descriptor.annotation is str
        has_parser = param.type_descriptor.parameter_info.parser is not None
        if param.nargs == 1 and not param.multiple and (value is None or (is_text and not has_parser)):
            return value
        return self.made().coerce(value, param=param, ctx=ctx)


class _PlainValues:
    """Has a text, and what was not given, reach the command without a conversion."""

    def get_params(self, ctx: Any) -> list[Any]:
        parameters: list[Any] = super().get_params(ctx)  # type: ignore[misc]  # of the command
        for one in parameters:
            if "get_runtime_param" not in vars(one):
                plain = _Plain(one.get_runtime_param)
                one.get_runtime_param = lambda plain=plain: plain
        return parameters


class PlainCommand(_PlainValues, TyperCommand):
    """A command that loads pydantic for values that are to be converted."""


class PlainGroup(_PlainValues, TyperGroup):
    """A group of such commands."""
