"""The base class of sections, and error messages that name the field's path and the expected value."""

import ipaddress
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic.fields import FieldInfo

Name = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9_-]{0,62}$")]


class Section(BaseModel):
    """A section of the configuration: unknown fields are errors, and null means the defaults.

    `examples` of a field appear in the error if a mapping or a list is expected.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    @model_validator(mode="before")
    @classmethod
    def _null_means_defaults(cls, fields: Any) -> Any:
        return {} if fields is None else fields


def problems(error: ValidationError, whole: type[BaseModel]) -> str:
    """Describe the errors of a document that `whole` rejected."""
    found = error.errors(include_url=False)
    paths = {problem["loc"] for problem in found}
    return "; ".join(
        f"{'.'.join(str(part) for part in problem['loc'])}: {_message(problem, whole)}"
        for problem in found
        # A list with an invalid item is also reported as too short; report the item only.
        if not any(other != problem["loc"] and other[: len(problem["loc"])] == problem["loc"] for other in paths)
    )


def _message(problem: Mapping[str, Any], whole: type[BaseModel]) -> str:
    path = problem["loc"]
    match problem["type"]:
        case "extra_forbidden":
            return f"unknown field{_known(_at(whole, path[:-1])[0])}"
        case "string_pattern_mismatch":
            return "a name has 1 to 63 lowercase letters, digits, '_' and '-', and starts with a letter or digit"
        case "model_type" | "model_attributes_type" | "dict_type":
            return _mapping_expected(path, problem["input"], *_at(whole, path))
        case "tuple_type" | "list_type":
            return f"a list is expected{_as_in(_at(whole, path)[1])}"
        case "too_short":
            return f"at least {problem['ctx']['min_length']}"
        case "too_long":
            return f"at most {problem['ctx']['max_length']}"
        case _:
            message = str(problem["msg"]).removeprefix("Value error, ").removeprefix("Assertion failed, ")
            return message[:1].lower() + message[1:]


def _mapping_expected(
    path: Sequence[int | str], given: object, section: type[BaseModel] | None, field: FieldInfo | None
) -> str:
    bare = section is not None and not section.model_fields
    expected = "no value is allowed, it has no settings" if bare else f"a mapping is expected{_as_in(field)}"
    if isinstance(given, bool):
        return f"{expected}; write `{path[-1]}:` to enable it, or leave it out"
    return expected if bare else f"{expected}{_known(section)}"


def _as_in(field: FieldInfo | None) -> str:
    if field is not None and field.examples:
        return f", as in {field.examples[0]}"
    if field is not None and isinstance(field.default, tuple) and field.default:
        return f", as in [{', '.join(map(str, field.default))}]"
    return ""


def _known(section: type[BaseModel] | None) -> str:
    if section is None:
        return ""
    names = [field.alias or name for name, field in section.model_fields.items() if not field.exclude]
    return f"; known fields: {', '.join(names)}" if names else "; it has no settings"


def _at(whole: type[BaseModel], path: Sequence[int | str]) -> tuple[type[BaseModel] | None, FieldInfo | None]:
    """Return the section at a path and the field there.

    A mapping of named sections is a field without a section; each entry is a section without a field.
    """
    section: type[BaseModel] | None = whole
    field: FieldInfo | None = None
    parts = iter(path)
    for part in parts:
        fields = {field.alias or name: field for name, field in section.model_fields.items()} if section else {}
        if part not in fields:
            return None, None
        field = fields[str(part)]
        section, named = _within(field.annotation)
        if named and next(parts, None) is None:
            return None, field  # the mapping
        if named:
            field = None  # one entry
    return section, field


def _within(annotation: Any) -> tuple[type[BaseModel] | None, bool]:
    """Return the section that a field's type is or contains, and whether it is a mapping of named sections."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation, False
    several = get_origin(annotation) is dict
    for argument in get_args(annotation):
        section, nested = _within(argument)
        if section is not None:
            return section, several or nested
    return None, False


def is_loopback(host: str) -> bool:
    """Return whether a host, a name or an address, is this machine."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"
