"""What an object may look like: by schemas.json, and by the client's models for the kinds that it does not have.

Strict, as a server asked with fieldValidation=Strict: an unknown field is an error, as it would be dropped in silence.
"""

from __future__ import annotations

import base64
import binascii
import functools
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import cel
from jsonschema import Draft202012Validator, FormatChecker, ValidationError
from kubernetes_asyncio.client import models
from referencing import Registry, Resource
from referencing.jsonschema import DRAFT202012

from tests.kubernetes.kinds import Kind
from tests.kubernetes.statuses import Cause, invalid, undecodable

_DOCUMENT = json.loads(Path(__file__).with_name("schemas.json").read_text())
_PREFIX = "#/components/schemas/"
_META = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"
_PLAIN = {"str": "string", "int": "integer", "float": "number", "bool": "boolean", "datetime": "string"}
_TEXTS = {"type": "object", "additionalProperties": {"type": "string"}}
# The CustomResourceDefinitions of the external snapshotter, in our own words.
_OWN = {
    "VolumeSnapshotClass": {
        "required": ["driver", "deletionPolicy"],
        "properties": {
            "driver": {"type": "string"},
            "deletionPolicy": {"type": "string", "enum": ["Delete", "Retain"]},
            "parameters": _TEXTS,
        },
    },
    "VolumeSnapshot": {
        "required": ["spec"],
        "properties": {
            "spec": {
                "type": "object",
                "required": ["source"],
                "properties": {
                    "source": {
                        "type": "object",
                        "properties": {
                            "persistentVolumeClaimName": {"type": "string"},
                            "volumeSnapshotContentName": {"type": "string"},
                        },
                    },
                    "volumeSnapshotClassName": {"type": "string"},
                },
            },
            "status": {
                "type": "object",
                "properties": {
                    "boundVolumeSnapshotContentName": {"type": "string"},
                    "creationTime": {"type": "string", "format": "date-time"},
                    "readyToUse": {"type": "boolean"},
                    "restoreSize": {"type": "string"},
                    "error": {
                        "type": "object",
                        "properties": {
                            "message": {"type": "string"},
                            "time": {"type": "string", "format": "date-time"},
                        },
                    },
                },
            },
        },
    },
}
_formats = FormatChecker(())


@_formats.checks("date-time")
def _is_time(value: object) -> bool:
    return not isinstance(value, str) or bool(
        re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)", value)
    )


@_formats.checks("int32")
def _is_int32(value: object) -> bool:
    return not isinstance(value, int) or -(2**31) <= value < 2**31


@_formats.checks("byte")
def _is_base64(value: object) -> bool:
    try:
        return not isinstance(value, str) or base64.b64decode(value, validate=True) is not None
    except binascii.Error:
        return False


def _object_schema(own: Mapping[str, Any]) -> dict[str, Any]:
    about = {"apiVersion": {"type": "string"}, "kind": {"type": "string"}, "metadata": {"$ref": _PREFIX + _META}}
    return {"type": "object", **own, "properties": {**about, **own["properties"]}}


@functools.cache
def schema_of(name: str) -> dict[str, Any]:
    """Return a schema by its name, as it was published."""
    if name in _DOCUMENT:
        return _DOCUMENT[name]  # type: ignore[no-any-return]
    if name in _OWN:
        return _object_schema(_OWN[name])
    return _model_schema(name)


def _model_schema(name: str) -> dict[str, Any]:
    model = getattr(models, name)
    properties = {model.attribute_map[key]: _type_schema(kind) for key, kind in model.openapi_types.items()}
    empty = model.__new__(model)
    empty.local_vars_configuration = models.V1Pod().local_vars_configuration
    required = []
    for key, published in model.attribute_map.items():
        try:
            setattr(empty, key, None)
        except ValueError:
            required.append(published)
    return {"type": "object", "properties": properties, **({"required": required} if required else {})}


def _type_schema(kind: str) -> dict[str, Any]:
    if kind.startswith("list["):
        return {"type": "array", "items": _type_schema(kind[5:-1])}
    if kind.startswith("dict("):
        return {"type": "object", "additionalProperties": _type_schema(kind[5:-1].partition(", ")[2])}
    if kind == "V1ObjectMeta":
        return {"$ref": _PREFIX + _META}
    if kind == "object":
        return {}
    if kind in _PLAIN:
        return {"type": _PLAIN[kind]}
    return {"$ref": _PREFIX + kind}


def _strict(schema: Any) -> Any:
    """Forbid what is not named."""
    if isinstance(schema, list):
        return [_strict(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    closed = "properties" in schema and "additionalProperties" not in schema
    strict = {key: _strict(value) for key, value in schema.items()}
    if closed and isinstance(schema["properties"], dict) and not schema.get("x-kubernetes-preserve-unknown-fields"):
        strict["additionalProperties"] = False
    return strict


@functools.cache
def _validator(name: str) -> Draft202012Validator:
    """Return a validator with all that its schema refers to: a registry that retrieves does so at each reference."""
    found: dict[str, Resource[Any]] = {}
    left = [name]
    while left:
        if (one := left.pop()) not in found:
            text = json.dumps(_strict(schema_of(one))).replace(f'"{_PREFIX}', '"schema:/')
            found[one] = DRAFT202012.create_resource(json.loads(text))
            left += re.findall(r'"schema:/([^"]+)"', text)
    registry = Registry().with_resources((f"schema:/{one}", resource) for one, resource in found.items())
    return Draft202012Validator({"$ref": f"schema:/{name}"}, registry=registry.crawl(), format_checker=_formats)


def check(kind: Kind, made: Mapping[str, Any], name: str, old: Mapping[str, Any] | None = None) -> None:
    """Raise if an object is not what its schema says: 400 for a field that cannot be read, 422 for a wrong value."""
    causes = []
    for error in _validator(kind.schema).iter_errors(made):
        path = _path(error)
        if error.validator == "additionalProperties":
            unknown = sorted(set(error.instance) - set(error.schema["properties"]))
            listed = ", ".join(f'unknown field "{f"{path}." if path else ""}{key}"' for key in unknown)
            raise undecodable(kind, f"strict decoding error: {listed}")
        if error.validator in {"type", "anyOf", "oneOf"} and not kind.custom:
            shown = type(error.instance).__name__
            raise undecodable(kind, f"json: cannot unmarshal {shown} into Go struct field {kind.kind}.{path}")
        causes.extend(_causes(error, path))
    causes.extend(_broken_rules(schema_of(kind.schema), made, old, ""))
    if causes:
        raise invalid(kind, name, causes)


def _path(error: ValidationError) -> str:
    parts = (f"[{part}]" if isinstance(part, int) else f".{part}" for part in error.absolute_path)
    return "".join(parts).removeprefix(".")


def _causes(error: ValidationError, path: str) -> Iterator[Cause]:
    value = json.dumps(error.instance)
    if error.validator == "required":
        missing = error.message.split("'")[1]
        yield Cause(f"{path}.{missing}".removeprefix("."), "FieldValueRequired", "Required value")
    elif error.validator == "enum":
        supported = ", ".join(json.dumps(choice) for choice in error.validator_value)
        yield Cause(path, "FieldValueNotSupported", f"Unsupported value: {value}: supported values: {supported}")
    elif error.validator in {"type", "anyOf", "oneOf"}:
        wanted = error.validator_value if error.validator == "type" else "integer,string"
        why = f"Invalid value: {json.dumps(type(error.instance).__name__)}: {path} in body must be of type {wanted}"
        yield Cause(path, "FieldValueTypeInvalid", f"{why}: {value}")
    else:
        yield Cause(path, "FieldValueInvalid", f"Invalid value: {value}: {error.message}")


def _broken_rules(schema: Mapping[str, Any], value: Any, old: Any, path: str) -> Iterator[Cause]:
    """Evaluate the CEL rules of a custom resource; those that name oldSelf hold for updates alone."""
    for rule in schema.get("x-kubernetes-validations", ()):
        known = {"self": value, **({"oldSelf": old} if old is not None else {})}
        if ("oldSelf" not in rule["rule"] or old is not None) and not cel.evaluate(rule["rule"], known):
            yield Cause(path, "FieldValueInvalid", f"Invalid value: {rule['message']}")
    for key, below in schema.get("properties", {}).items():
        if isinstance(value, Mapping) and key in value and "x-kubernetes-validations" in below:
            was = old.get(key) if isinstance(old, Mapping) else None
            yield from _broken_rules(below, value[key], was, f"{path}.{key}".removeprefix("."))


def with_defaults(schema: Mapping[str, Any], value: Any) -> Any:
    """Fill in the defaults of a custom resource's schema."""
    if isinstance(value, list):
        return [with_defaults(schema.get("items", {}), item) for item in value]
    if not isinstance(value, dict):
        return value
    filled = {key: with_defaults(schema.get("properties", {}).get(key, {}), item) for key, item in value.items()}
    for key, below in schema.get("properties", {}).items():
        if "default" in below:
            filled.setdefault(key, json.loads(json.dumps(below["default"])))
    return filled


def without_nulls(value: Any) -> Any:
    """Drop what is null, as the server's decoder does."""
    if isinstance(value, list):
        return [without_nulls(item) for item in value]
    if isinstance(value, dict):
        return {key: without_nulls(item) for key, item in value.items() if item is not None}
    return value
