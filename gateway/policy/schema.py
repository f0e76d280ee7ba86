"""The JSON Schema of the policy file, for editors: what may stand where, and what it means.

Loading checks more than a schema can say (globs, patterns, examples); what loads is always valid by the schema.
"""

from typing import Any

from gateway.policy.document import PolicyDocument

_DIALECT = "https://json-schema.org/draft/2020-12/schema"
_ID = "https://airlock.invalid/policy.schema.json"


def policy_schema() -> dict[str, Any]:
    """Return the schema, as of Draft 2020-12."""
    schema = PolicyDocument.model_json_schema(mode="validation")
    for definition in (schema, *schema["$defs"].values()):
        _plain(definition)
    return {"$schema": _DIALECT, "$id": _ID, **schema, "title": "Airlock policy"}


def _plain(definition: dict[str, Any]) -> None:
    """Take out what pydantic adds for programs: titles, and null for what may be left out."""
    definition.pop("title", None)
    for name, field in definition.get("properties", {}).items():
        field.pop("title", None)
        forms = [form for form in field.get("anyOf", ()) if form != {"type": "null"}]
        if field.get("default", ...) is None:
            del field["default"]
        if len(forms) == 1 and len(field["anyOf"]) > 1:
            del field["anyOf"]
            definition["properties"][name] = {**forms[0], **field}
        elif forms:
            field["anyOf"] = forms
