"""Write gateway/http/openapi.json, the description of the JSON face, from the protos and their comments.

With --check: fail if the committed one differs.
"""

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor
from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from gateway.composition.services import service_files  # noqa: E402 - the checkout's own
from gateway.http.http_rules import HttpRule, rules_of  # noqa: E402 - as above
from gateway.http.json_messages import json_name  # noqa: E402 - as above

TARGET = ROOT / "gateway/http/openapi.json"
_INTEGERS = {
    FieldDescriptor.TYPE_INT32: ("integer", "int32"),
    FieldDescriptor.TYPE_UINT32: ("integer", "int64"),
    # ProtoJSON writes them as strings, for a double holds fewer digits.
    FieldDescriptor.TYPE_INT64: ("string", "int64"),
    FieldDescriptor.TYPE_UINT64: ("string", "uint64"),
}
_PROBLEM = {
    "type": "object",
    "description": "An error (RFC 9457). `reason` is one of docs/reference/errors.md.",
    "required": ["type", "title", "status", "detail"],
    "properties": {
        "type": {"type": "string"},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "detail": {"type": "string"},
        "code": {"type": "string", "description": "The gRPC status code."},
        "reason": {"type": "string"},
        "details": {"type": "object", "additionalProperties": {"type": "string"}},
        "violations": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {"field": {"type": "string"}, "message": {"type": "string"}},
            },
        },
        "retry_after_s": {"type": "number"},
    },
}


def comments() -> dict[str, str]:
    """Return the comments of all services, methods, messages, fields and enums, by full name."""
    with tempfile.TemporaryDirectory() as made:
        target = Path(made) / "set"
        protos = sorted(str(path.relative_to(ROOT)) for path in (ROOT / "proto/gateway/v1").glob("*.proto"))
        options = ["-Iproto", "--include_source_info", f"--descriptor_set_out={target}"]
        subprocess.run([sys.executable, "-m", "grpc_tools.protoc", *options, *protos], check=True, cwd=ROOT)
        files = FileDescriptorSet.FromString(target.read_bytes()).file
    return {name: text for file in files for name, text in _comments_of(file)}


def _comments_of(file: FileDescriptorProto) -> Iterator[tuple[str, str]]:
    for place in file.source_code_info.location:
        text = " ".join(place.leading_comments.split())
        if text and (name := _name_at(file, list(place.path))):
            yield f"{file.package}.{name}", text


def _name_at(file: FileDescriptorProto, path: list[int]) -> str:
    names, node = [], file
    for number, index in zip(path[::2], path[1::2], strict=False):
        node = getattr(node, node.DESCRIPTOR.fields_by_number[number].name)[index]
        names.append(node.name)
    return ".".join(names)


class Document:
    """Builds the document, and the schemas that it refers to."""

    def __init__(self) -> None:
        self._comments = comments()
        self._schemas: dict[str, Any] = {"Problem": _PROBLEM}
        self._rules = list(rules_of(service_files()))
        # Of an answer, every field without presence is there; of a request none needs to be.
        self._requested = set[str]()
        for rule in self._rules:
            _add_types(rule.rpc.input_type, self._requested)

    def build(self) -> dict[str, Any]:
        paths: dict[str, Any] = {}
        for rule in self._rules:
            paths.setdefault(rule.template, {})[rule.method.lower()] = self._operation(rule)
        paths["/v1/threads/{thread}/content"] = _contents()
        return {
            "openapi": "3.1.0",
            "info": {
                "title": "Airlock",
                "version": "v1",
                "description": "The gRPC services as JSON. A field of bytes `x` comes as `x_text` if it is UTF-8, else "
                "as `x` in base64. Integers of 64 bits are strings. See docs/http.md.",
            },
            "servers": [{"url": "/"}],
            "security": [{"key": []}],
            "paths": dict(sorted(paths.items())),
            "components": {
                "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
                "schemas": dict(sorted(self._schemas.items())),
            },
        }

    def _operation(self, rule: HttpRule) -> dict[str, Any]:
        rpc = rule.rpc
        streams = rpc.server_streaming
        schema = self._reference(rpc.output_type)
        text = self._comments.get(rpc.full_name, "")
        operation: dict[str, Any] = {
            "operationId": rpc.name,
            "tags": [rpc.containing_service.name],
            "summary": text.split(". ")[0].removesuffix("."),
            "description": f"{text} Each answer is a server-sent event." if streams else text,
            "parameters": list(self._parameters(rule)),
            "responses": {
                "200": {
                    "description": "The answers, one for each event." if streams else "The answer.",
                    "content": {"text/event-stream" if streams else "application/json": {"schema": schema}},
                },
                "default": {
                    "description": "An error.",
                    "content": {"application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}},
                },
            },
        }
        if rule.body:
            field = rpc.input_type.fields_by_name.get(rule.body)
            body = rpc.input_type if field is None else field.message_type
            kind = "application/x-ndjson" if rpc.client_streaming else "application/json"
            operation["requestBody"] = {"required": True, "content": {kind: {"schema": self._reference(body)}}}
        return operation

    def _parameters(self, rule: HttpRule) -> Iterator[dict[str, Any]]:
        for path in rule.variables:
            field = _field_at(rule.rpc.input_type, path)
            yield {"name": path, "in": "path", "required": True, **self._described(field)}
        if rule.body != "*":
            for path, field in _leaves(rule.rpc.input_type):
                if path not in rule.variables and path.split(".")[0] != rule.body:
                    yield {"name": path, "in": "query", **self._described(field)}

    def _described(self, field: FieldDescriptor) -> dict[str, Any]:
        return {"description": self._comments.get(field.full_name, ""), "schema": self._schema(field)}

    def _reference(self, kind: Any) -> dict[str, str]:
        if kind.name not in self._schemas:
            self._schemas[kind.name] = {}  # a type may contain itself
            properties: dict[str, Any] = {}
            for field in kind.fields:
                text = self._comments.get(field.full_name, "")
                name = json_name(field)
                if name != field.name:
                    properties[name] = {"description": text}  # any JSON value
                    continue
                properties[name] = {**self._schema(field), "description": text}
                if field.type == FieldDescriptor.TYPE_BYTES:
                    properties[f"{name}_text"] = {"type": "string", "description": f"{text} As text, if it is UTF-8."}
            text = self._comments.get(kind.full_name, "")
            self._schemas[kind.name] = {"type": "object", "description": text, "properties": properties}
            if kind.name not in self._requested and (required := list(_always(kind))):
                self._schemas[kind.name]["required"] = required
        return {"$ref": f"#/components/schemas/{kind.name}"}

    def _schema(self, field: FieldDescriptor) -> dict[str, Any]:
        kind = field.message_type
        if kind is not None and kind.GetOptions().map_entry:
            return {"type": "object", "additionalProperties": self._one(kind.fields_by_name["value"])}
        return {"type": "array", "items": self._one(field)} if field.is_repeated else self._one(field)

    def _one(self, field: FieldDescriptor) -> dict[str, Any]:
        if field.message_type is not None:
            if field.message_type.full_name == "google.protobuf.Timestamp":
                return {"type": "string", "format": "date-time"}
            return self._reference(field.message_type)
        if field.enum_type is not None:
            return self._enum(field.enum_type)
        if field.type in _INTEGERS:
            kind, width = _INTEGERS[field.type]
            return {"type": kind, "format": width}
        if field.type == FieldDescriptor.TYPE_BOOL:
            return {"type": "boolean"}
        if field.type in {FieldDescriptor.TYPE_DOUBLE, FieldDescriptor.TYPE_FLOAT}:
            return {"type": "number"}
        if field.type == FieldDescriptor.TYPE_BYTES:
            return {"type": "string", "contentEncoding": "base64"}
        return {"type": "string"}

    def _enum(self, enum: EnumDescriptor) -> dict[str, str]:
        if enum.name not in self._schemas:
            text = self._comments.get(enum.full_name, "")
            values = [value.name for value in enum.values]
            self._schemas[enum.name] = {"type": "string", "description": text, "enum": values}
        return {"$ref": f"#/components/schemas/{enum.name}"}


def _add_types(kind: Any, found: set[str]) -> None:
    """Add the names of a type and of all types in it."""
    if kind is not None and kind.name not in found:
        found.add(kind.name)
        for field in kind.fields:
            _add_types(field.message_type, found)


def _always(kind: Any) -> Iterator[str]:
    """Yield the names of the fields that every answer has: for bytes there are two names, and one of them is there."""
    for field in kind.fields:
        if not field.has_presence and field.type != FieldDescriptor.TYPE_BYTES:
            yield json_name(field)


def _field_at(kind: Descriptor, path: str) -> FieldDescriptor:
    *outer, name = path.split(".")
    found: Any = kind
    for one in outer:
        found = found.fields_by_name[one].message_type
    field: FieldDescriptor = found.fields_by_name[name]
    return field


def _leaves(kind: Descriptor, prefix: str = "") -> Iterator[tuple[str, FieldDescriptor]]:
    for field in kind.fields:
        inner = field.message_type
        if inner is not None and not inner.full_name.startswith("google.") and not field.is_repeated:
            yield from _leaves(inner, f"{prefix}{field.name}.")
        else:
            yield prefix + field.name, field


def _contents() -> dict[str, Any]:
    text = {"type": "string"}
    thread = {"name": "thread", "in": "path", "required": True, "schema": text}
    path = {"name": "path", "in": "query", "required": True, "schema": text}
    numbers = [{"name": name, "in": "query", "schema": {"type": "integer"}} for name in ("offset", "limit_bytes")]
    body: dict[str, Any] = {"application/octet-stream": {}}
    size = {"application/json": {"schema": {"type": "object", "properties": {"size_bytes": {"type": "integer"}}}}}
    error = {
        "description": "An error.",
        "content": {"application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}},
    }
    return {
        "get": {
            "operationId": "ReadContent",
            "tags": ["WorkspaceService"],
            "summary": "Returns the bytes of a file",
            "parameters": [thread, path, *numbers],
            "responses": {"200": {"description": "The bytes.", "content": body}, "default": error},
        },
        "put": {
            "operationId": "WriteContent",
            "tags": ["WorkspaceService"],
            "summary": "Replaces a file atomically by the body",
            "parameters": [thread, path],
            "requestBody": {"required": True, "content": body},
            "responses": {"200": {"description": "Its size.", "content": size}, "default": error},
        },
    }


def main() -> None:
    """Write the document, or check it."""
    text = json.dumps(Document().build(), indent=1) + "\n"
    if "--check" not in sys.argv[1:]:
        TARGET.write_text(text, encoding="utf-8")
    elif TARGET.read_text(encoding="utf-8") != text:
        sys.exit("gateway/http/openapi.json does not match proto/; run `make proto` and commit the result")


if __name__ == "__main__":
    main()
