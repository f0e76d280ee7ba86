"""A real gateway that every RPC is tried on: what one tenant has there, keys of all kinds, and calls with them."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import grpc
from google.protobuf import text_format
from google.protobuf.message import Message
from google.rpc import error_details_pb2
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase
from grpc_status import rpc_status

from gateway.client import Client, Tls
from gateway.credentials.keys import ACTING_SCOPES, OPERATOR_SCOPES, TENANT_SCOPES, make_key
from gateway.storage.database import Database
from gateway.storage.key_store import KeyStore
from tests.gateway_process import Home
from tests.security.gateway.credentials import OTHER, TENANT, Credential, Keys
from tests.security.gateway.rpc_table import RPCS, Ids, Requests

POLICY = """\
version: 1
description: Everything, but some writes only when somebody said so.
rules:
  - id: asked
    tools: [write_file]
    paths: [/workspace/asked/**]
    effect: ask
    reason: Somebody has to look at it.
  - id: files
    tools: [ls, read_file, write_file, edit_file, glob, grep]
    paths: [/workspace, /workspace/**]
    effect: allow
    reason: The workspace is the agent's.
  - id: commands
    tools: [execute]
    effect: allow
    reason: The sandbox contains them.
"""
ABSENT = Ids(
    tenant="nobody",
    thread="no-such-thread",
    run_id="run_" + "0" * 24,
    approval_id="apr_" + "0" * 24,
    grant_id="grant_" + "0" * 24,
    process_id="no-such-process",
    key_id="key_" + "0" * 16,
    request_id="no-such-request",
    snapshot_id="snap_" + "0" * 24,
)
# What differs from call to call, for every caller.
_VOLATILE_FIELDS = "id|call_id|duration_ms|seconds|nanos|etag|pid|boot|run_id|policy_version|container"
_VOLATILE = re.compile(rf"^\s*({_VOLATILE_FIELDS})\b.*\n", re.MULTILINE)
_DEADLINE_S = 30.0
_ANSWERS = 3


@dataclass(frozen=True)
class Outcome:
    """What a call came to, as its caller sees it."""

    code: grpc.StatusCode
    said: str
    reason: str
    details: Mapping[str, str]
    answers: Sequence[str]

    def without(self, ids: Ids) -> Outcome:
        """Return the same without ids that the caller had sent."""
        details = {name: ids.hidden(value) for name, value in self.details.items()}
        return Outcome(
            self.code, ids.hidden(self.said), self.reason, details, [ids.hidden(one) for one in self.answers]
        )


def described(channel: grpc.Channel) -> dict[str, Any]:
    """Return the methods of every service by reflection, as "Service/Method"."""
    database: Any = ProtoReflectionDescriptorDatabase(channel)
    found = {}
    for service in database.get_services():
        if service.startswith("grpc."):
            continue  # health and reflection are for everybody
        file = database.FindFileContainingSymbol(service)
        for one in file.service:
            if f"{file.package}.{one.name}" == service:
                found |= {f"{one.name}/{method.name}": method for method in one.method}
    return found


def ask(credential: Credential, name: str, method: Any, request: Requests) -> Outcome:
    """Make a call; of a stream that does not end the first answers are taken."""
    from google.protobuf import message_factory, symbol_database

    pool = symbol_database.Default().pool
    answer = message_factory.GetMessageClass(pool.FindMessageTypeByName(method.output_type.lstrip(".")))
    requests = [request] if isinstance(request, Message) else list(request)
    call = credential.channel.stream_stream(
        f"/gateway.v1.{name}",
        request_serializer=lambda one: one.SerializeToString(),
        response_deserializer=answer.FromString,
    )(iter(requests), metadata=credential.metadata, timeout=_DEADLINE_S)
    answers: list[str] = []
    try:
        for one in call:
            answers.append(_VOLATILE.sub("", text_format.MessageToString(one)))
            if len(answers) == _ANSWERS or name.endswith(("/WatchApprovals", "/WatchSandboxTransitions")):
                call.cancel()
                break
    except grpc.RpcError:
        return _refusal(call, answers)
    return Outcome(grpc.StatusCode.OK, "", "", {}, answers)


_PLACE, _HALF = "qQq", b"\xed\xa0\x80"  # as long as each other; no encoder writes the second


def with_half_a_pair(method: Any) -> Iterator[tuple[str, bytes]]:
    """Yield requests as bytes, each with half of a surrogate pair in one string, and the field's name."""
    from google.protobuf import message_factory, symbol_database

    pool = symbol_database.Default().pool
    kind = message_factory.GetMessageClass(pool.FindMessageTypeByName(method.input_type.lstrip(".")))
    for path in _strings(kind.DESCRIPTOR):
        request: Any = kind()
        inner = request
        for step in path[:-1]:
            inner = getattr(inner, step.name)
        field = path[-1]
        if field.message_type is not None:  # a map of strings
            getattr(inner, field.name)[_PLACE] = _PLACE
        elif field.is_repeated:
            getattr(inner, field.name).append(_PLACE)
        else:
            setattr(inner, field.name, _PLACE)
        yield ".".join(step.name for step in path), request.SerializeToString().replace(_PLACE.encode(), _HALF)


def _strings(descriptor: Any) -> Iterator[tuple[Any, ...]]:
    for field in descriptor.fields:
        is_map = field.message_type is not None and field.message_type.GetOptions().map_entry
        if is_map or (field.message_type is None and field.type == field.TYPE_STRING):
            if not is_map or field.message_type.fields_by_name["value"].type == field.TYPE_STRING:
                yield (field,)
        elif field.message_type is not None and not field.is_repeated:
            for path in _strings(field.message_type):
                yield (field, *path)


def ask_raw(credential: Credential, name: str, raw: bytes) -> grpc.StatusCode:
    """Send bytes as the request of a call; return how it ended."""
    method = f"/gateway.v1.{name}"
    call = credential.channel.stream_stream(method)(iter([raw]), metadata=credential.metadata, timeout=_DEADLINE_S)
    try:
        next(iter(call), None)
    except grpc.RpcError:
        pass
    else:
        call.cancel()
    code: grpc.StatusCode = call.code()
    return code


def _refusal(call: Any, answers: Sequence[str]) -> Outcome:
    status = rpc_status.from_call(call)
    info = error_details_pb2.ErrorInfo()
    for detail in status.details if status is not None else ():
        detail.Unpack(info)
    return Outcome(call.code(), call.details(), info.reason, dict(info.metadata), answers)


async def make_keys(home: Home) -> Keys:
    """Make keys in a gateway's database."""
    database = await Database.open(home.database_url)
    try:
        keys = KeyStore(database)

        async def made(tenant: str, *scopes: str, store: KeyStore = keys, lifetime_us: int | None = None) -> str:
            key = make_key(scopes, operator=not tenant)
            await store.add(tenant, key, lifetime_us=lifetime_us)
            return key.secret

        revoked = make_key()
        await keys.add(TENANT, revoked)
        await keys.revoke(revoked.id, by="test")
        an_hour_ago = KeyStore(database, lambda: time.time_ns() // 1000 - 3_600_000_000)
        return Keys(
            {scope: await made(TENANT, scope) for scope in TENANT_SCOPES},
            {scope: await made("", scope) for scope in OPERATOR_SCOPES},
            {scope: await made(OTHER, scope) for scope in TENANT_SCOPES},
            {
                "unknown": "alk_" + "x" * 43,
                "revoked": revoked.secret,
                "expired": await made(TENANT, *ACTING_SCOPES, store=an_hour_ago, lifetime_us=1_000_000),
            },
        )
    finally:
        await database.close()


async def make_things(address: str, home: Home, keys: Keys, tls: Tls | None) -> Ids:
    """Have the first tenant own one of everything."""
    thread = "theirs-alone"
    async with (
        Client(address, home.key, tls=tls) as client,
        Client(address, keys.tenant["approve"], tls=tls) as approver,
    ):
        await client.write_file(thread, "/workspace/mine", b"secret")
        process = await client.start_process(["sleep", "600"], thread=thread)
        asked = [
            await client.call_tool("write_file", {"path": f"/workspace/asked/{n}", "content": "x"}, thread=thread)
            for n in range(2)
        ]
        await approver.resolve_approval(asked[0].approval_id, "thread")
        (grant,) = await approver.grants(thread=thread)
        run = await client.start_run("x", thread=thread)
        async for _ in client.watch_run(run.id):  # to its end: what a walk finds changed, the walk has changed
            pass
        await client.call_tool("ls", {"path": "/workspace"}, thread=thread, request_id="their-request")
        snapshot = await client.create_snapshot(thread)
    async with Client(address, keys.operator["operate"], tls=tls) as operator:
        key = await anext(operator.keys(TENANT))
    return Ids(TENANT, thread, run.id, asked[1].approval_id, grant.id, process.id, key.id, "their-request", snapshot.id)


def requests(name: str, ids: Ids) -> Requests:
    """Return the request of an RPC."""
    return RPCS[name].request(ids)
