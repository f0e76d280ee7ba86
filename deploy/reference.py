"""Write docs/reference/ from what it describes: protos, command line, configuration, policy schema, errors, events.

.venv/bin/python deploy/reference.py            writes
.venv/bin/python deploy/reference.py --check    fails when a page is not what it would write
"""

from __future__ import annotations

import importlib
import inspect
import json
import re
import sys
import tempfile
from collections.abc import Container, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import grpc_tools
import typer
from google.protobuf import descriptor_pb2, text_format
from grpc_tools import protoc
from pydantic import TypeAdapter

import agent.events
from gateway.cli import terminal
from gateway.cli.main import app
from gateway.config.config import Config
from gateway.errors import AirlockError, all_errors
from gateway.policy.schema import policy_schema
from gateway.v1 import validate_pb2

ROOT = Path(__file__).parents[1]
_KNOWN = Path(grpc_tools.__file__).parent / "_proto"  # google/protobuf/*.proto
PAGES = ROOT / "docs" / "reference"
_GENERATED = "<!-- written by deploy/reference.py: change what it describes, then run `make reference` -->"
_SERVICE, _MESSAGE, _ENUM = 6, 4, 5  # field numbers of FileDescriptorProto, as source paths have them
_METHOD_OR_FIELD_OR_VALUE = 2
_REPEATED = descriptor_pb2.FieldDescriptorProto.LABEL_REPEATED
_TYPES = {
    number: name.removeprefix("TYPE_").lower()
    for name, number in descriptor_pb2.FieldDescriptorProto.Type.items()  # type: ignore[attr-defined]
}


# What a field's type is called that has no section of its own.
_UNTOLD = {"JsonValue": "any", "WithoutSettings": "nothing"}
_API = (
    "Package `gateway.v1`. The tenant comes from the credential, never from a request. Errors are a status with a "
    "`google.rpc.ErrorInfo`: see [errors.md](errors.md)."
)
_SCOPE = "Needs the scope `{}`{}."
_CLI = (
    "`AIRLOCK_ADDRESS` and `AIRLOCK_API_KEY` stand in for `--address` and `--key`. `airlock --install-completion` has "
    "the shell complete commands and options."
)
_CONFIGURATION = (
    "One YAML file, made by `airlock init`. Relative paths are relative to it. A field that is not known is an error."
)
_POLICY = (
    "The fields of a policy. What they mean together is told in the tutorial; `docs/policy.schema.json` is the same as "
    "JSON Schema, for editors."
)
_ERRORS = (
    "Each error is a gRPC status with a `google.rpc.ErrorInfo` (domain `airlock`) whose `reason` a program can branch "
    "on; the Python client raises the class of that reason. `RESOURCE_EXHAUSTED` has a `RetryInfo` where waiting "
    "helps, `INVALID_ARGUMENT` a `BadRequest` with the fields."
)
_EVENTS = (
    "A run is a sequence of events, each with a type and a JSON payload; in the library, `event.typed()` returns it as "
    "a class of `agent.events`. A payload of a subagent's event also has `within`: the id of the `spawn_subagent` call "
    "that started the subagent. A step and a call have each event once, also where another gateway goes on with the "
    "run of a lost one; only deltas may come again, and then differ: `model_finished` has the answer that counts."
)


def main() -> int:
    """Write the pages, or compare them with `--check`."""
    pages = {
        "api.md": _api(),
        "cli.md": _cli(),
        "configuration.md": _configuration(),
        "policy.md": _policy(),
        "errors.md": _errors(),
        "events.md": _events(),
    }
    if "--check" not in sys.argv:
        PAGES.mkdir(parents=True, exist_ok=True)
        for name, text in pages.items():
            (PAGES / name).write_text(text, encoding="utf-8")
        return 0
    stale = [
        name
        for name, text in pages.items()
        if not (PAGES / name).is_file() or (PAGES / name).read_text(encoding="utf-8") != text
    ]
    if stale:
        print(f"not up to date in docs/reference: {', '.join(stale)}; run `make reference` and commit", file=sys.stderr)
    return 1 if stale else 0


# --- the API ---


def _api() -> str:
    parts = [
        "# The gRPC API",
        _GENERATED,
        _API,
    ]
    for file in _files():
        told = {tuple(place.path): place.leading_comments for place in file.source_code_info.location}
        for index, service in enumerate(file.service):
            parts += [f"## {service.name}", _prose(told[_SERVICE, index]), _SCOPE.format(*_scopes(service.name))]
            parts += [
                f"### {service.name}.{rpc.name}\n\n"
                f"`{_stream(rpc.client_streaming)}{_short(rpc.input_type)}` → "
                f"`{_stream(rpc.server_streaming)}{_short(rpc.output_type)}`\n\n"
                + _prose(told[_SERVICE, index, _METHOD_OR_FIELD_OR_VALUE, at])
                for at, rpc in enumerate(service.method)
            ]
        for index, enum in enumerate(file.enum_type):
            rows = [
                (f"`{value.name}`", _prose(told[_ENUM, index, _METHOD_OR_FIELD_OR_VALUE, at]))
                for at, value in enumerate(enum.value)
            ]
            parts += [f"### {enum.name}", _prose(told[_ENUM, index]), _table(("value", "meaning"), rows)]
        for index, message in enumerate(file.message_type):
            rows = [
                (
                    f"`{field.name}`",
                    f"`{_type(field, message)}`",
                    _prose(told[_MESSAGE, index, _METHOD_OR_FIELD_OR_VALUE, at]) + _rules(field),
                )
                for at, field in enumerate(message.field)
            ]
            parts += [f"### {message.name}", _prose(told[_MESSAGE, index])]
            parts += [_table(("field", "type", "meaning"), rows)] if rows else []
    return _page(parts)


def _files() -> Sequence[descriptor_pb2.FileDescriptorProto]:
    with tempfile.NamedTemporaryFile() as found:
        names = [str(path) for path in sorted((ROOT / "proto/gateway/v1").glob("*.proto"))]
        arguments = [
            "protoc",
            f"-I{ROOT / 'proto'}",
            f"-I{_KNOWN}",
            "--include_source_info",
            f"--descriptor_set_out={found.name}",
        ]
        if protoc.main([*arguments, *names]):
            raise SystemExit("the protos cannot be read")
        files = descriptor_pb2.FileDescriptorSet.FromString(Path(found.name).read_bytes()).file
    return [file for file in files if file.package == "gateway.v1"]


def _type(field: descriptor_pb2.FieldDescriptorProto, message: descriptor_pb2.DescriptorProto) -> str:
    name = _short(field.type_name) if field.type_name else _TYPES[field.type]
    entry = next((nested for nested in message.nested_type if nested.name == name), None)
    if entry is not None and entry.options.map_entry:
        return f"map<{', '.join(_type(part, entry) for part in entry.field)}>"
    if field.label == _REPEATED:
        return f"repeated {name}"
    return f"optional {name}" if field.proto3_optional else name


def _rules(field: descriptor_pb2.FieldDescriptorProto) -> str:
    """Return what a request must keep to, as protovalidate has it; nothing where it may be anything."""
    if not field.options.HasExtension(validate_pb2.field):
        return ""
    rules = text_format.MessageToString(field.options.Extensions[validate_pb2.field], as_one_line=True)
    return f" Must be `{rules}`."


def _scopes(service: str) -> tuple[str, str]:
    """Return the scope that a service's RPCs need, by the name of the service, and which of them need another."""
    file = "_".join(part.lower() for part in re.findall(r"[A-Z][a-z]+", service))
    servicer = getattr(importlib.import_module(f"gateway.services.{file}"), service)
    others = getattr(servicer, "scopes", {})
    return str(servicer.scope), "".join(f", {rpc} `{scope}`" for rpc, scope in others.items())


def _short(name: str) -> str:
    return name.removeprefix(".gateway.v1.").removeprefix(".google.protobuf.").rpartition(".")[2]


def _stream(streams: bool) -> str:
    return "stream " if streams else ""


# --- the command line ---


def _cli() -> str:
    parts = [
        "# The command line",
        _GENERATED,
        _docstring(terminal).partition("\n\n")[2],
        _CLI,
    ]
    whole = typer.main.get_command(app)
    parts += ["## Before any command", _options(whole)]
    parts += [part for path, command in _commands("airlock", whole) for part in _command(path, command)]
    return _page(parts)


def _commands(path: str, command: Any) -> Iterator[tuple[str, Any]]:
    if not hasattr(command, "commands"):
        yield path, command
        return
    for name, child in command.commands.items():
        if not child.hidden:
            yield from _commands(f"{path} {name}", child)


def _command(path: str, command: Any) -> Iterator[str]:
    arguments = [_metavar(part) for part in command.params if part.param_type_name == "argument"]
    yield f"## {' '.join((path, *arguments))}"
    yield inspect.cleandoc(command.help or "")
    yield _options(command)


def _options(command: Any) -> str:
    """Return the table of a command's options, nothing where it has none."""
    options = [
        (", ".join(f"`{name}`" for name in (*option.opts, *option.secondary_opts)), _told(option.help or "", option))
        for option in command.params
        if option.param_type_name == "option" and not option.hidden and option.name != "help"
    ]
    return _table(("option", "meaning"), options) if options else ""


def _metavar(argument: Any) -> str:
    name = (argument.metavar or argument.name or "").upper().strip("[]")
    return name if argument.required else f"[{name}]"


def _told(text: str, option: Any) -> str:
    default = option.default
    if option.envvar and option.envvar not in _CLI:
        text = f"{text} Or `{option.envvar}`."
    shown = option.show_default and default not in {None, False, True, ""} and not callable(default)
    return f"{text} Default: `{default}`." if shown else text


# --- configuration and policy ---


def _configuration() -> str:
    schema = Config.model_json_schema()
    parts = [
        "# The configuration file",
        _GENERATED,
        inspect.cleandoc(Config.__doc__ or ""),
        _CONFIGURATION,
    ]
    return _page([*parts, *_schema_parts(schema)])


def _schema_parts(schema: Mapping[str, Any]) -> Iterator[str]:
    yield "## The file"
    sections = {name: section for name, section in schema.get("$defs", {}).items() if section.get("properties")}
    yield _properties(schema, sections)
    for name, section in sorted(sections.items()):
        yield f"## {name}"
        yield " ".join(str(section.get("description", "")).split())
        yield _properties(section, sections)


def _properties(section: Mapping[str, Any], sections: Container[str]) -> str:
    required = section.get("required", ())
    rows = []
    for name, value in section.get("properties", {}).items():
        if name == "directory":
            continue  # the gateway's own: where the file lies
        default = "required" if name in required else _shown_default(value)
        says = " ".join(str(value.get("description", "")).split())
        rows.append((f"`{name}`", _kind(value, sections), default, says))
    return _table(("field", "type", "default", "meaning"), rows)


def _shown_default(value: Mapping[str, Any]) -> str:
    default = value.get("default")
    return "" if default in (None, {}, []) or isinstance(default, dict) else f"`{json.dumps(default)}`"


def _kind(value: Mapping[str, Any], sections: Container[str]) -> str:
    """Return what a field takes, with a link where the page has a section of it."""
    if "$ref" in value:
        name = value["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})" if name in sections else _UNTOLD.get(name, name)
    if "anyOf" in value or "oneOf" in value:
        kinds = [_kind(one, sections) for one in value.get("anyOf") or value.get("oneOf") or ()]
        return " or ".join(kind for kind in dict.fromkeys(kinds) if kind != "null")
    if "enum" in value:
        return ", ".join(f"`{one}`" for one in value["enum"])
    if "const" in value:
        return f"`{value['const']}`"
    if value.get("type") == "array":
        return f"list of {_kind(value.get('items', {}), sections)}"
    if value.get("type") == "object" and isinstance(value.get("additionalProperties"), dict):
        return f"map to {_kind(value['additionalProperties'], sections)}"
    for named in value.get("patternProperties", {}).values():
        return f"map to {_kind(named, sections)}"
    return str(value.get("type", "any"))


def _policy() -> str:
    parts = ["# The policy file", _GENERATED, _POLICY]
    return _page([*parts, *_schema_parts(policy_schema())])


# --- errors and events ---


def _errors() -> str:
    rows = []
    for reason, kind in sorted(all_errors(AirlockError).items()):
        says = " ".join(inspect.cleandoc(kind.__doc__ or "").split())
        rows.append((f"`{reason}`", f"`{kind.__name__}`", kind.code.name, says))
    return _page(
        [
            "# Errors",
            _GENERATED,
            _ERRORS,
            _table(("reason", "class in gateway.client", "code", "meaning"), rows),
        ]
    )


def _events() -> str:
    schemas = {type_: TypeAdapter(kind).json_schema() for type_, kind in agent.events.event_types().items()}
    parts = {name: part for schema in schemas.values() for name, part in schema.get("$defs", {}).items()}
    known = {name: part for name, part in parts.items() if part.get("properties")}
    sections = ["# Events of a run", _GENERATED, _EVENTS]
    for name, schema in {**schemas, **known}.items():
        rows = [
            (f"`{field}`", _kind(value, known) + (" or null" if {"type": "null"} in value.get("anyOf", ()) else ""))
            for field, value in schema["properties"].items()
            if field != "within"
        ]
        sections += [f"## {name}", _prose(schema.get("description", "")), _table(("field", "type"), rows)]
    return _page(sections)


# --- Markdown ---


def _docstring(module: object) -> str:
    return inspect.cleandoc(getattr(module, "__doc__", "") or "")


def _prose(text: str) -> str:
    return " ".join(text.split())


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    cells = [heads, ["---"] * len(heads), *[[cell.replace("|", "\\|") for cell in row] for row in rows]]
    return "\n".join(f"| {' | '.join(row)} |" for row in cells)


def _page(parts: Sequence[str]) -> str:
    return "\n\n".join(part for part in parts if part) + "\n"


if __name__ == "__main__":
    sys.exit(main())
