"""A part of the configuration, and how what is wrong with it is said: the field's path, and what would be right."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field, ValidationError

Name = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9_-]{0,62}$")]


class Section(BaseModel):
    """A part of the configuration; a field that is not known is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid")


def problems(error: ValidationError, whole: type[BaseModel]) -> str:
    """Say what is wrong with a document that `whole` refused."""
    return "; ".join(
        f"{'.'.join(str(part) for part in problem['loc'])}: {_said(problem['type'], problem['msg'])}"
        + (_known(whole, problem["loc"][:-1]) if problem["type"] == "extra_forbidden" else "")
        for problem in error.errors(include_url=False, include_context=False)
    )


def _said(kind: str, message: str) -> str:
    match kind:
        case "extra_forbidden":
            return "not known here"
        case "string_pattern_mismatch":
            return "a name is small letters, digits, '_' and '-', 63 at most, and starts with a letter or digit"
        case _:
            message = message.removeprefix("Value error, ").removeprefix("Assertion failed, ")
            return message[:1].lower() + message[1:]


def _known(whole: type[BaseModel], path: Sequence[int | str]) -> str:
    """Return the names that the section at a path may have."""
    section: type[BaseModel] | None = whole
    parts = iter(path)
    for part in parts:
        if section is None:
            return ""
        fields = {field.alias or name: field for name, field in section.model_fields.items()}
        if part not in fields:
            return ""
        section, named = _within(fields[str(part)].annotation)
        if named:
            next(parts, None)  # the name under which this one of several stands
    if section is None:
        return ""
    names = [field.alias or name for name, field in section.model_fields.items() if not field.exclude]
    return f"; here may stand: {', '.join(names)}" if names else "; nothing may stand here, it has no settings"


def _within(annotation: Any) -> tuple[type[BaseModel] | None, bool]:
    """Return the section that a field's type is or holds, and whether it holds several by their names."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation, False
    several = get_origin(annotation) is dict
    for argument in get_args(annotation):
        section, nested = _within(argument)
        if section is not None:
            return section, several or nested
    return None, False
