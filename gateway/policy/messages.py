"""Pydantic's errors in the words of a policy file: one problem for each field, with what is allowed there."""

from collections.abc import Iterator, Mapping
from typing import Any, cast, get_origin

from pydantic import BaseModel, ValidationError

from gateway.policy.document import PolicyDocument
from gateway.policy.fields import WORDS_FORM
from gateway.policy.yaml_lines import Path

_EXAMPLE = "an example is text (a command line, a path, HOST:PORT) or the arguments as a mapping"
_SHOWN_CHARS = 200


def translated(error: ValidationError) -> Iterator[tuple[Path, str]]:
    """Yield each wrong field and what would be right."""
    problems: dict[Path, str] = {}
    for detail in error.errors(include_url=False):
        path, message = _said(cast(Mapping[str, Any], detail))
        # What is said of a placeholder comes last of the forms that a word may have, and knows the most.
        if path not in problems or "placeholder" in message:
            problems[path] = message
    for path, message in problems.items():
        # A list with a bad item is also too short without it: the item is the problem.
        if not any(other != path and other[: len(path)] == path for other in problems):
            yield path, message


def _said(detail: Mapping[str, Any]) -> tuple[Path, str]:
    path: Path = tuple(detail["loc"])
    if path[-1:] == ("[key]",):
        path = path[:-1]
    if "argv" in path and (word := path.index("argv") + 3) <= len(path):
        form, inside = str(path[word : word + 1]), path[word + 1 :]
        if "Placeholder" not in form or not inside:  # which of the forms of a word was meant is not known
            return path[:word], str(detail["ctx"]["error"]) if detail["type"] == "value_error" else WORDS_FORM
        path = path[:word] + inside
    elif "examples" in path and len(path) > path.index("examples") + 3:
        return path[: path.index("examples") + 3], _EXAMPLE
    return path, _message(detail, path)


def _message(detail: Mapping[str, Any], path: Path) -> str:
    kind, value, context = detail["type"], detail.get("input"), detail.get("ctx", {})
    shown = repr(value)[:_SHOWN_CHARS]
    if kind == "missing":
        return "missing, and it is mandatory"
    if kind == "extra_forbidden":
        return f"unknown field; allowed here: {', '.join(_allowed_fields(path[:-1]))}"
    if kind == "value_error":
        return str(context.get("error", detail["msg"]))
    if path[-2:-1] == ("argv",) or path[-1:] == ("argv",):
        return WORDS_FORM
    if kind == "literal_error":
        return f"{shown} is not allowed; allowed: {str(context['expected']).replace(' or ', ', ')}"
    if kind == "string_type":
        return f"must be text, not {shown}; write it in quotes"
    if kind == "string_pattern_mismatch":
        if ":" in context.get("pattern", ""):
            return f"{shown} is no time of day; write it in quotes as '09:30' or '22:00'"
        return f"{shown} is not an id; allowed: a small letter or digit, then up to 63 of these or '.', '_', '-'"
    if kind in ("model_type", "dict_type", "model_attributes_type"):
        return f"must be a mapping with these fields: {', '.join(_allowed_fields(path)) or 'names and values'}"
    if kind == "tuple_type":
        return "must be a list"
    message = str(detail["msg"]).removeprefix("Input should be ").replace("Tuple", "list")
    return f"{shown} is not allowed; it should be {message}" if not isinstance(value, tuple | dict) else message


def _allowed_fields(path: Path) -> list[str]:
    """Return the names of the fields that the mapping at a path may have."""
    model: type[BaseModel] | None = PolicyDocument
    is_name = False
    for part in path:
        if isinstance(part, int) or model is None:
            continue
        if is_name:  # the key of a mapping that names things, as groups does
            is_name = False
            continue
        found = model.model_fields.get(part)
        if found is not None:
            model = _model_of(found.annotation)
            is_name = get_origin(found.annotation) is dict
    return list(model.model_fields) if model is not None and not is_name else []


def _model_of(annotation: Any) -> type[BaseModel] | None:
    """Return the model that a field's type is, or holds."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    models = map(_model_of, getattr(annotation, "__args__", ()))
    return next((model for model in models if model is not None), None)
