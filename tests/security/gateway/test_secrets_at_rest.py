"""A secret in every field of every request: where may it be found afterwards? Nowhere but in what is listed here.

Each field has a secret of its own, so what is found says which field it came from.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import json
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import grpc
import pytest
from google.protobuf import descriptor_pool, message_factory
from google.protobuf.descriptor import FieldDescriptor, MethodDescriptor

from agent.models.scripted_model_server import Call, ScriptedModelServer, Turn
from airlock.v1 import (  # noqa: F401 - they register what the test walks
    admin_service_pb2,
    approval_service_pb2,
    audit_service_pb2,
    process_service_pb2,
    run_service_pb2,
    sandbox_service_pb2,
    thread_service_pb2,
    tool_service_pb2,
    workspace_service_pb2,
)
from gateway.client import Client
from gateway.credentials.keys import ACTING_SCOPES
from gateway.errors import AirlockError
from tests.gateway_process import Home, make_home, served
from tests.unit.gateway.telemetry.receiver import Received, receiver

# No Docker: what is stored, logged and traced is the same.
ENVIRONMENT = {"DOCKER_HOST": "unix:///nonexistent/docker.sock", "NO_PROXY": "127.0.0.1", "OPENAI_API_KEY": "none"}
POLICY = """
version: 1
rules:
  - {id: asks, tools: [execute], argv: [[publish]], effect: ask, reason: Publishing is for people.}
  - {id: echo, tools: [execute], argv: [[echo]], effect: allow, reason: Harmless.}
  - {id: files, tools: [read_file, write_file, ls, glob, grep, edit_file], paths: [/workspace/**], effect: allow,
     reason: The workspace.}
"""
SERVICES = ("admin", "approval", "audit", "process", "run", "sandbox", "thread", "tool", "workspace")
# What a caller names things by must be found by that name again; what a model goes on from, and what an approver
# judges, is exact. docs/policy.md says so.
NAMES = frozenset({"thread", "name", "new_thread", "request_id", "process_id", "agent", "key"})
EXACT = {
    "threads.name",
    "thread_metadata.key",
    "thread_metadata.value",
    "runs.task",
    "runs.checkpoint",
    "messages.message",
    "approvals.arguments",
    "approvals.edited_arguments",
    "approvals.proposed_rule",
    "grants.rule",
    "policies.text",
}


@dataclass
class Secrets:
    """Secrets, each for one place."""

    made: dict[str, str] = field(default_factory=dict)

    def of(self, place: str) -> str:
        """Return the secret that is planted in a place."""
        letters = base64.b32encode(hashlib.sha256(place.encode()).digest()).decode()[:36].lower()
        return self.made.setdefault(place, "gh" + f"p_{letters}")

    def found_in(self, text: bytes) -> set[str]:
        """Return the places whose secret is in a text, also as base64 has it."""
        found = set()
        for place, secret in self.made.items():
            kernel = secret[4:].encode()
            forms = [kernel, kernel[::-1], *(_base64_kernel(kernel, shift) for shift in range(3))]
            if any(form in text for form in forms):
                found.add(place)
        return found


def _base64_kernel(data: bytes, shift: int) -> bytes:
    """Return what of base64 is the same wherever the data stand, `shift` bytes into a group."""
    return base64.b64encode(b"\0" * shift + data)[4 if shift else 0 : -4]


@dataclass
class Left:
    """What a gateway has left behind when all was planted."""

    secrets: Secrets
    home: Home
    spans: Received
    metrics: str
    shown: list[tuple[str, str]]


def _fields(method: MethodDescriptor) -> Iterator[tuple[str, list[FieldDescriptor]]]:
    """Yield each string or bytes field of a request, as a path of fields."""

    def walk(message: Any, path: list[FieldDescriptor]) -> Iterator[list[FieldDescriptor]]:
        for one in message.fields:
            if (
                one.type == FieldDescriptor.TYPE_MESSAGE
                and len(path) < 3
                and not one.message_type.GetOptions().map_entry
            ):
                yield from walk(one.message_type, [*path, one])
            elif one.type in (FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_BYTES):
                yield [*path, one]

    for path in walk(method.input_type, []):
        yield f"{method.full_name}:{'.'.join(one.name for one in path)}", path


def _request(method: MethodDescriptor, path: list[FieldDescriptor], secret: str) -> Any:
    """Return a request whose other fields are as plain as can be, so that it gets as far as it can."""
    request = message_factory.GetMessageClass(method.input_type)()
    plain: Mapping[str, str] = {"thread": "plain", "name": "ls", "agent": "coder", "task": "go", "path": "/workspace/x"}
    for one in method.input_type.fields:
        if one.name in plain and one.type == FieldDescriptor.TYPE_STRING and not one.is_repeated:
            setattr(request, one.name, plain[one.name])
    parent = request
    for one in path[:-1]:
        parent = getattr(parent, one.name).add() if one.is_repeated else getattr(parent, one.name)
    last = path[-1]
    value: Any = secret.encode() if last.type == FieldDescriptor.TYPE_BYTES else secret
    if last.name.endswith("_json"):
        value = json.dumps({"command": f"rm {secret}", "path": f"/workspace/{secret}", secret: [secret]})
    if last.is_repeated:
        getattr(parent, last.name).append(value)
    else:
        setattr(parent, last.name, value)
    return request


async def _every_field(address: str, key: str, secrets: Secrets) -> None:
    """Send each request of the public API once for each field."""
    pool = descriptor_pool.Default()
    files = [pool.FindFileByName(f"gateway/v1/{name}_service.proto") for name in SERVICES]
    methods = [method for file in files for service in file.services_by_name.values() for method in service.methods]
    async with grpc.aio.insecure_channel(address) as channel:
        for method in methods:
            for place, path in _fields(method):
                await _asked(channel, method, _request(method, path, secrets.of(place)), key)


async def _asked(channel: grpc.aio.Channel, method: MethodDescriptor, request: Any, key: str) -> None:
    """Make one call, whatever comes of it."""
    kinds = ("stream" if streams else "unary" for streams in (method.client_streaming, method.server_streaming))
    make = getattr(channel, "_".join(kinds))(
        f"/{method.containing_service.full_name}/{method.name}",
        request_serializer=lambda message: message.SerializeToString(),
        response_deserializer=bytes,
    )
    given = iter([request]) if method.client_streaming else request
    call = make(given, metadata=[("authorization", f"Bearer {key}")], timeout=1)
    with contextlib.suppress(grpc.aio.AioRpcError):
        if method.server_streaming:
            async for _ in call:
                break
            call.cancel()
        else:
            await call


async def _calls(client: Client, secrets: Secrets, shown: list[tuple[str, str]]) -> None:
    """Make tool calls whose verdicts, results and errors quote what was asked for."""
    for number, (tool, arguments) in enumerate(
        [
            ("execute", {"command": "rm {}"}),
            ("execute", {"command": "echo $(( {} ))"}),
            ("execute", {"command": "echo {} > /etc/x"}),
            ("execute", {"command": "echo {}"}),
            ("execute", {"command": "publish {}"}),
            ("execute", {"command": ["{}"]}),
            ("read_file", {"path": "/etc/{}"}),
            ("read_file", {"path": "/workspace/{}"}),
            ("write_file", {"path": "/workspace/{}", "content": "{}"}),
            ("edit_file", {"path": "/workspace/none", "old_text": "{}", "new_text": "{}"}),
            ("glob", {"pattern": "{}"}),
            ("grep", {"pattern": "{}("}),
            ("{}", {"path": "{}"}),
        ]
    ):
        for request_id in ("", f"request-{number}"):
            place = f"call {number} {tool} {request_id}"
            secret = secrets.of(place)
            planted = json.loads(json.dumps(arguments).replace("{}", secret))
            try:
                result = await client.call_tool(
                    tool.replace("{}", secret), planted, thread="calls", request_id=request_id or None
                )
                shown.append((place, repr(result)))
            except AirlockError as error:
                shown.append((place, repr(error)))


@pytest.fixture(scope="module")
def left(tmp_path_factory: pytest.TempPathFactory) -> Left:
    return asyncio.run(_scenario(make_home(tmp_path_factory.mktemp("secrets"))))


async def _scenario(home: Home) -> Left:
    secrets = Secrets()
    shown: list[tuple[str, str]] = []
    says = secrets.of("model: what it says")
    turns = [
        Turn(say=says, calls=(Call("execute", {"command": f"rm {secrets.of('model: a command that is denied')}"}),)),
        Turn(say="", calls=(Call("execute", {"command": f"echo {secrets.of('model: a command that runs')}"}),)),
        Turn(say="", calls=(Call(secrets.of("model: a tool's name"), {"x": "y"}),)),
        Turn(say="Done."),
    ]
    async with ScriptedModelServer(turns) as model, receiver() as spans:
        (home.config.parent / "policies" / "default.yaml").write_text(POLICY, encoding="utf-8")
        home.configure(
            sandbox={"engine": "memory", "keep_workspaces": False},
            model={"base_url": model.base_url, "name": "scripted"},
            telemetry={
                "otlp_endpoint": spans.endpoint,
                "record_arguments": True,
                "record_results": True,
                "metrics_listen": "127.0.0.1:0",
            },
        )
        acting, approving, operating = (
            home.make_key("default", *ACTING_SCOPES, "audit"),
            home.make_key("default", "approve"),
            home.make_key(""),
        )
        with served(home, ENVIRONMENT) as gateway:
            async with Client(gateway.address, acting) as client, Client(gateway.address, approving) as approver:
                await _calls(client, secrets, shown)
                run = await client.start_run(f"go {secrets.of('run: task')}", thread="run")
                shown += [("events", repr(event)) async for event in client.watch_run(run.id)]
                for approval in await approver.approvals():
                    await approver.resolve_approval(approval.id, "deny", text=secrets.of("approver: message"))
                await _calls(client, secrets, shown)  # the approval's answer is reported, and results are repeated
            for key in (acting, approving, operating):
                await _every_field(gateway.address, key, secrets)
            log = (home.config.parent / "serve.log").read_text(encoding="utf-8")
            at = next(json.loads(line)["address"] for line in log.splitlines() if "metrics are served" in line)
            with contextlib.closing(urllib.request.urlopen(f"http://{at}/metrics")) as response:
                metrics = response.read().decode()
        return Left(secrets, home, spans, metrics, shown)


def _tables(home: Home) -> Iterator[tuple[str, bytes]]:
    """Yield each text that is stored, and the column it is in."""
    from gateway.storage.tables import metadata

    for table in metadata.tables.values():
        names = [column.name for column in table.columns]
        for row in home.rows(f"SELECT {', '.join(f'{chr(34)}{name}{chr(34)}' for name in names)} FROM {table.name}"):
            for name, value in zip(names, row, strict=True):
                if isinstance(value, str | bytes):
                    yield f"{table.name}.{name}", value if isinstance(value, bytes) else value.encode()


def _may_be_in(column: str, place: str) -> bool:
    return column in EXACT or place.rpartition(".")[2].rpartition(":")[2] in NAMES


async def test_no_secret_is_in_the_database_but_in_what_must_be_exact(left: Left) -> None:
    found = {(column, place) for column, text in _tables(left.home) for place in left.secrets.found_in(text)}
    assert {one for one in found if not _may_be_in(*one)} == set()
    stored = {place for _, place in found}
    files = b"".join(path.read_bytes() for path in left.home.config.parent.glob("state/*.db*"))
    assert {
        place for place in left.secrets.found_in(files) if place not in stored and not _may_be_in("", place)
    } == set()
    assert "run: task" in stored  # it was looked for in earnest


async def test_no_secret_is_in_the_log_in_spans_or_in_metrics(left: Left) -> None:
    log = (left.home.config.parent / "serve.log").read_bytes()
    spans = b"".join(span.SerializeToString() for span in left.spans.spans)
    assert b"rm ghp_[redacted" in spans
    for text in (log, spans, left.metrics.encode()):
        assert left.secrets.found_in(text) == set()


async def test_no_secret_is_in_what_calls_and_runs_show(left: Left) -> None:
    for place, text in left.shown:
        kept = {one for one in left.secrets.found_in(text.encode()) if place != "events" or one != "run: task"}
        assert kept == set(), text
