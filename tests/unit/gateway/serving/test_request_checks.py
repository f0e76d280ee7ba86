"""Requests are checked by the rules in their protos, and what is said of a field says what would be right."""

from __future__ import annotations

import importlib
import pkgutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc_tools
import pytest
from google.protobuf.descriptor import Descriptor, FieldDescriptor, FileDescriptor
from google.protobuf.timestamp_pb2 import Timestamp
from google.rpc import error_details_pb2
from grpc_tools import protoc

import airlock.v1
from airlock.v1 import approval_service_pb2, audit_service_pb2, run_service_pb2, thread_service_pb2, tool_service_pb2
from gateway.errors import InvalidArgument
from gateway.serving.edge import status_of
from gateway.serving.request_checks import check
from gateway.v1 import validate_pb2

WELL_KNOWN = Path(grpc_tools.__file__).parent / "_proto"


@pytest.mark.parametrize("seconds", [2**62, -(2**62), 253_402_300_800, -62_135_596_801])
def test_a_moment_out_of_every_calendar_is_refused_wherever_it_is(seconds: int) -> None:
    moment = Timestamp(seconds=seconds)
    for request, field in (
        (run_service_pb2.ListRunsRequest(started_since=moment), "started_since"),
        (audit_service_pb2.QueryAuditRequest(filter=audit_service_pb2.AuditFilter(until=moment)), "filter.until"),
    ):
        with pytest.raises(InvalidArgument) as refused:
            check(request)
        assert set(refused.value.violations) == {field}


def test_the_first_and_the_last_moment_are_taken() -> None:
    for seconds in (253_402_300_799, -62_135_596_800):
        check(run_service_pb2.ListRunsRequest(started_until=Timestamp(seconds=seconds, nanos=999_999_999)))
    with pytest.raises(InvalidArgument, match="started_until"):
        check(run_service_pb2.ListRunsRequest(started_until=Timestamp(nanos=-1)))


def files() -> Iterator[FileDescriptor]:
    for module in pkgutil.iter_modules(airlock.v1.__path__):
        if module.name.endswith("_service_pb2"):
            yield importlib.import_module(f"airlock.v1.{module.name}").DESCRIPTOR


def requests() -> Iterator[Descriptor]:
    for file in files():
        for service in file.services_by_name.values():
            for method in service.methods:
                yield method.input_type


def rules_of(field: FieldDescriptor) -> Any:
    return field.GetOptions().Extensions[validate_pb2.field]  # type: ignore[index]


@pytest.mark.parametrize(
    "request_, said",
    [
        (tool_service_pb2.CallToolRequest(name="ls", thread="x" * 257), "thread: 256 printable characters at most"),
        (tool_service_pb2.CallToolRequest(name="ls", thread="a\nb"), "thread: 256 printable characters at most"),
        (tool_service_pb2.CallToolRequest(), "name: between 1 and 128 characters"),
        (tool_service_pb2.StreamToolCallRequest(), "call: a value is required"),
        (run_service_pb2.StartRunRequest(), "task: between 1 and 262,144 characters"),
        (run_service_pb2.StartRunRequest(task="x", policy_mode=9), "policy_mode: one of UNSPECIFIED, PIN, FOLLOW"),
        (run_service_pb2.WatchRunRequest(from_sequence=-1), "from_sequence: 0 or more"),
        (run_service_pb2.ListRunsRequest(page_size=201), "page_size: between 0 and 200"),
        (
            approval_service_pb2.ResolveApprovalRequest(),
            "answer: one of ALLOW_ONCE, ALLOW_RUN, ALLOW_THREAD, DENY, EDIT",
        ),
        (thread_service_pb2.GetThreadRequest(), "thread: between 1 and 256 printable characters"),
    ],
)
def test_a_field_that_is_wrong_is_named_with_what_would_be_right(request_: Any, said: str) -> None:
    with pytest.raises(InvalidArgument) as raised:
        check(request_)
    assert str(raised.value) == said
    field, _, description = said.partition(": ")
    bad = error_details_pb2.BadRequest()
    assert any(detail.Unpack(bad) for detail in status_of(raised.value).details)
    assert [(one.field, one.description) for one in bad.field_violations] == [(field, description)]


def test_every_field_that_is_wrong_is_reported_at_once() -> None:
    with pytest.raises(InvalidArgument) as raised:
        check(tool_service_pb2.StreamToolCallRequest(call=tool_service_pb2.CallToolRequest(thread="\0")))
    assert raised.value.violations.keys() == {"call.thread", "call.name"}


MANY = 100_000


@pytest.mark.parametrize(
    "request_, field, limit",
    [
        (thread_service_pb2.SetThreadMetadataRequest(thread="t", remove=[""] * MANY), "remove", "1,024 at most"),
        (
            thread_service_pb2.SetThreadMetadataRequest(thread="t", set={f"{n:0600}": "" for n in range(6000)}),
            "set",
            "1,024 entries at most",
        ),
        (run_service_pb2.StartRunRequest(task="x", attachments=[""] * MANY), "attachments", "64 at most"),
        (
            audit_service_pb2.QueryAuditRequest(filter=audit_service_pb2.AuditFilter(kinds=["x" * 65] * MANY)),
            "filter.kinds",
            "64 at most",
        ),
        (run_service_pb2.ListRunsRequest(statuses=[0] * MANY), "statuses", "16 at most"),
        (
            thread_service_pb2.SetThreadMetadataRequest(thread="x" * 257, remove=[""] * MANY),
            "thread",
            "between 1 and 256 printable characters",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_many_invalid_items_cost_no_more_than_one(request_: Any, field: str, limit: str) -> None:
    before = time.thread_time()
    with pytest.raises(InvalidArgument) as raised:
        check(request_)
    # Building a violation for each item takes seconds; stopping at the first takes less than a millisecond.
    assert time.thread_time() - before < 0.1
    assert set(raised.value.violations) == {field}
    assert raised.value.violations[field].startswith(limit)


def test_a_few_items_that_are_wrong_hide_no_other_field() -> None:
    with pytest.raises(InvalidArgument) as raised:
        check(thread_service_pb2.SetThreadMetadataRequest(thread="\0", remove=[""] * 60, set={"": ""}))
    assert raised.value.violations.keys() == {"thread", "remove", "set"}


def test_maps_have_a_limit_and_lists_whose_items_have_rules() -> None:
    def fields(message: Descriptor) -> Iterator[FieldDescriptor]:
        for field in message.fields:
            yield field
            if field.message_type is not None and not field.is_repeated:
                yield from fields(field.message_type)

    for request in requests():
        for field in fields(request):
            rules = rules_of(field)
            if field.is_repeated and rules.WhichOneof("type"):
                assert rules.repeated.max_items or rules.map.max_pairs, field.full_name
            if field.is_repeated and field.message_type is not None:
                assert field.message_type.GetOptions().map_entry, f"{field.full_name}: its items are not counted"
                assert rules.map.max_pairs, field.full_name


def test_a_request_that_is_right_and_what_is_no_message_pass() -> None:
    check(tool_service_pb2.CallToolRequest(name="ls", thread="mein Faden ✓", request_id="x" * 128))
    check(object())


def test_the_rules_of_every_message_can_be_applied() -> None:
    for request in requests():
        message = getattr(importlib.import_module(f"airlock.v1.{Path(request.file.name).stem}_pb2"), request.name)
        try:
            check(message())
        except InvalidArgument as error:
            assert error.violations  # noqa: PT017 - some are right when they are empty, and some are not


def test_every_page_every_thread_and_every_request_id_has_rules() -> None:
    bounded = {"page_size", "page_token", "thread", "request_id", "run_id"}
    unruled = [
        f"{request.name}.{field.name}"
        for request in requests()
        for field in request.fields
        if field.name in bounded and not rules_of(field).WhichOneof("type")
    ]
    assert unruled == []


def test_every_message_field_and_rpc_has_a_comment(tmp_path: Path) -> None:
    from google.protobuf.descriptor_pb2 import FileDescriptorSet

    target = tmp_path / "protos"
    names = [file.name for file in files()]
    code = protoc.main(
        ["protoc", "-Iproto", f"-I{WELL_KNOWN}", "--include_source_info", f"--descriptor_set_out={target}", *names]
    )
    assert code == 0
    bare: list[str] = []
    for file in FileDescriptorSet.FromString(target.read_bytes()).file:
        said = {tuple(at.path) for at in file.source_code_info.location if at.leading_comments.strip()}

        def look(path: tuple[int, ...], name: str, said: set[tuple[int, ...]] = said) -> None:
            if path not in said:
                bare.append(name)

        for m, message in enumerate(file.message_type):
            look((4, m), message.name)
            for f, field in enumerate(message.field):
                look((4, m, 2, f), f"{message.name}.{field.name}")
        for e, enum in enumerate(file.enum_type):
            look((5, e), enum.name)
            for v, value in enumerate(enum.value):
                look((5, e, 2, v), value.name)
        for s, service in enumerate(file.service):
            look((6, s), service.name)
            for r, method in enumerate(service.method):
                look((6, s, 2, r), f"{service.name}.{method.name}")
    assert bare == []
