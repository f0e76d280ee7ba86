"""The patches of the Kubernetes API: JSON patch, JSON merge patch and strategic merge patch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jsonpatch

from tests.kubernetes.kinds import Kind
from tests.kubernetes.schemas import schema_of
from tests.kubernetes.statuses import ApiError, bad_request
from tests.kubernetes.store import Made, copied

JSON_PATCH = "application/json-patch+json"
MERGE_PATCH = "application/merge-patch+json"
STRATEGIC_PATCH = "application/strategic-merge-patch+json"


def patched(kind: Kind, made: Mapping[str, Any], patch: Any, content_type: str) -> Made:
    """Return an object with a patch applied to it."""
    if content_type == JSON_PATCH and isinstance(patch, list):
        return _json_patched(made, patch)
    if content_type == MERGE_PATCH and isinstance(patch, dict):
        return _merged(copied(made), patch)  # type: ignore[no-any-return]
    if content_type == STRATEGIC_PATCH and isinstance(patch, dict) and not kind.custom:
        return _strategic(copied(made), patch, schema_of(kind.schema))
    if content_type in {JSON_PATCH, MERGE_PATCH}:
        raise bad_request(f"error decoding patch: json: cannot unmarshal into a patch of {content_type}")
    supported = ", ".join((JSON_PATCH, MERGE_PATCH, *(() if kind.custom else (STRATEGIC_PATCH,))))
    message = f"the body of the request was in an unknown format - accepted media types include: {supported}"
    raise ApiError(415, "UnsupportedMediaType", message)


def _json_patched(made: Mapping[str, Any], operations: Sequence[Mapping[str, Any]]) -> Made:
    try:
        return jsonpatch.apply_patch(copied(made), operations)  # type: ignore[no-any-return]
    except jsonpatch.JsonPatchTestFailed as error:
        message = f"the server rejected our request due to an error in our request: testing failed: {error}"
        raise ApiError(422, "Invalid", message) from None
    except (jsonpatch.JsonPatchException, jsonpatch.JsonPointerException) as error:
        message = f"the server rejected our request due to an error in our request: {error}"
        raise ApiError(422, "Invalid", message) from None


def _merged(value: Any, patch: Any) -> Any:
    if not isinstance(patch, dict):
        return patch
    value = value if isinstance(value, dict) else {}
    for key, new in patch.items():
        if new is None:
            value.pop(key, None)
        else:
            value[key] = _merged(value.get(key), new)
    return value


def _resolved(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    for below in (schema, *schema.get("allOf", ())):
        if "$ref" in below:
            return {**schema_of(below["$ref"].rpartition("/")[2]), **schema}
    return schema


def _strategic(value: dict[str, Any], patch: Mapping[str, Any], schema: Mapping[str, Any]) -> dict[str, Any]:
    schema = _resolved(schema)
    for key, new in patch.items():
        below = _resolved(schema.get("properties", {}).get(key, {}))
        old = value.get(key)
        if key.startswith("$"):
            continue
        if new is None:
            value.pop(key, None)
        elif isinstance(new, dict) and new.get("$patch") == "replace":
            value[key] = {name: item for name, item in new.items() if name != "$patch"}
        elif isinstance(new, dict):
            value[key] = _strategic(old if isinstance(old, dict) else {}, new, below)
        elif isinstance(new, list) and "merge" in str(below.get("x-kubernetes-patch-strategy")):
            value[key] = _merged_list(old or [], new, below)
        else:
            value[key] = new
    return value


def _merged_list(old: list[Any], new: list[Any], schema: Mapping[str, Any]) -> list[Any]:
    key = schema.get("x-kubernetes-patch-merge-key")
    if key is None:
        return [*old, *(item for item in new if item not in old)]
    result = list(old)
    for item in new:
        place = next((index for index, held in enumerate(result) if held.get(key) == item.get(key)), None)
        if item.get("$patch") == "delete":
            result = [held for held in result if held.get(key) != item.get(key)]
        elif place is None:
            result.append(_strategic({}, item, schema.get("items", {})))
        else:
            result[place] = _strategic(result[place], item, schema.get("items", {}))
    return result
