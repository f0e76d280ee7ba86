import datetime

from google.protobuf import timestamp_pb2 as _timestamp_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class AuditRecord(_message.Message):
    __slots__ = ("sequence", "at", "kind", "actor", "thread", "run_id", "call_id", "tool", "arguments_digest", "verdict", "rule", "policy_version", "outcome", "size_bytes", "duration_ms", "details_json", "previous_digest", "digest", "tenant")
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    AT_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    ACTOR_FIELD_NUMBER: _ClassVar[int]
    THREAD_FIELD_NUMBER: _ClassVar[int]
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    CALL_ID_FIELD_NUMBER: _ClassVar[int]
    TOOL_FIELD_NUMBER: _ClassVar[int]
    ARGUMENTS_DIGEST_FIELD_NUMBER: _ClassVar[int]
    VERDICT_FIELD_NUMBER: _ClassVar[int]
    RULE_FIELD_NUMBER: _ClassVar[int]
    POLICY_VERSION_FIELD_NUMBER: _ClassVar[int]
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    DURATION_MS_FIELD_NUMBER: _ClassVar[int]
    DETAILS_JSON_FIELD_NUMBER: _ClassVar[int]
    PREVIOUS_DIGEST_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    at: _timestamp_pb2.Timestamp
    kind: str
    actor: str
    thread: str
    run_id: str
    call_id: str
    tool: str
    arguments_digest: str
    verdict: str
    rule: str
    policy_version: str
    outcome: str
    size_bytes: int
    duration_ms: float
    details_json: str
    previous_digest: str
    digest: str
    tenant: str
    def __init__(self, sequence: _Optional[int] = ..., at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., kind: _Optional[str] = ..., actor: _Optional[str] = ..., thread: _Optional[str] = ..., run_id: _Optional[str] = ..., call_id: _Optional[str] = ..., tool: _Optional[str] = ..., arguments_digest: _Optional[str] = ..., verdict: _Optional[str] = ..., rule: _Optional[str] = ..., policy_version: _Optional[str] = ..., outcome: _Optional[str] = ..., size_bytes: _Optional[int] = ..., duration_ms: _Optional[float] = ..., details_json: _Optional[str] = ..., previous_digest: _Optional[str] = ..., digest: _Optional[str] = ..., tenant: _Optional[str] = ...) -> None: ...

class AuditFilter(_message.Message):
    __slots__ = ("kinds", "thread", "run_id", "tool", "verdict", "rule", "actor", "since", "until")
    KINDS_FIELD_NUMBER: _ClassVar[int]
    THREAD_FIELD_NUMBER: _ClassVar[int]
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    TOOL_FIELD_NUMBER: _ClassVar[int]
    VERDICT_FIELD_NUMBER: _ClassVar[int]
    RULE_FIELD_NUMBER: _ClassVar[int]
    ACTOR_FIELD_NUMBER: _ClassVar[int]
    SINCE_FIELD_NUMBER: _ClassVar[int]
    UNTIL_FIELD_NUMBER: _ClassVar[int]
    kinds: _containers.RepeatedScalarFieldContainer[str]
    thread: str
    run_id: str
    tool: str
    verdict: str
    rule: str
    actor: str
    since: _timestamp_pb2.Timestamp
    until: _timestamp_pb2.Timestamp
    def __init__(self, kinds: _Optional[_Iterable[str]] = ..., thread: _Optional[str] = ..., run_id: _Optional[str] = ..., tool: _Optional[str] = ..., verdict: _Optional[str] = ..., rule: _Optional[str] = ..., actor: _Optional[str] = ..., since: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., until: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class QueryAuditRequest(_message.Message):
    __slots__ = ("tenant", "filter", "page_size", "page_token")
    TENANT_FIELD_NUMBER: _ClassVar[int]
    FILTER_FIELD_NUMBER: _ClassVar[int]
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    tenant: str
    filter: AuditFilter
    page_size: int
    page_token: str
    def __init__(self, tenant: _Optional[str] = ..., filter: _Optional[_Union[AuditFilter, _Mapping]] = ..., page_size: _Optional[int] = ..., page_token: _Optional[str] = ...) -> None: ...

class QueryAuditResponse(_message.Message):
    __slots__ = ("records", "next_page_token")
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    records: _containers.RepeatedCompositeFieldContainer[AuditRecord]
    next_page_token: str
    def __init__(self, records: _Optional[_Iterable[_Union[AuditRecord, _Mapping]]] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class TailAuditRequest(_message.Message):
    __slots__ = ("tenant", "filter", "from_sequence", "follow")
    TENANT_FIELD_NUMBER: _ClassVar[int]
    FILTER_FIELD_NUMBER: _ClassVar[int]
    FROM_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    FOLLOW_FIELD_NUMBER: _ClassVar[int]
    tenant: str
    filter: AuditFilter
    from_sequence: int
    follow: bool
    def __init__(self, tenant: _Optional[str] = ..., filter: _Optional[_Union[AuditFilter, _Mapping]] = ..., from_sequence: _Optional[int] = ..., follow: _Optional[bool] = ...) -> None: ...

class TailAuditResponse(_message.Message):
    __slots__ = ("record",)
    RECORD_FIELD_NUMBER: _ClassVar[int]
    record: AuditRecord
    def __init__(self, record: _Optional[_Union[AuditRecord, _Mapping]] = ...) -> None: ...

class VerifyAuditRequest(_message.Message):
    __slots__ = ("tenant", "known_sequence", "known_digest")
    TENANT_FIELD_NUMBER: _ClassVar[int]
    KNOWN_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    KNOWN_DIGEST_FIELD_NUMBER: _ClassVar[int]
    tenant: str
    known_sequence: int
    known_digest: str
    def __init__(self, tenant: _Optional[str] = ..., known_sequence: _Optional[int] = ..., known_digest: _Optional[str] = ...) -> None: ...

class VerifyAuditResponse(_message.Message):
    __slots__ = ("whole", "records", "first_sequence", "last_sequence", "last_digest", "broken_sequence", "problem")
    WHOLE_FIELD_NUMBER: _ClassVar[int]
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    FIRST_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    LAST_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    LAST_DIGEST_FIELD_NUMBER: _ClassVar[int]
    BROKEN_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    PROBLEM_FIELD_NUMBER: _ClassVar[int]
    whole: bool
    records: int
    first_sequence: int
    last_sequence: int
    last_digest: str
    broken_sequence: int
    problem: str
    def __init__(self, whole: _Optional[bool] = ..., records: _Optional[int] = ..., first_sequence: _Optional[int] = ..., last_sequence: _Optional[int] = ..., last_digest: _Optional[str] = ..., broken_sequence: _Optional[int] = ..., problem: _Optional[str] = ...) -> None: ...
