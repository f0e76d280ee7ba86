import datetime

from airlock.v1 import usage_service_pb2 as _usage_service_pb2
from google.protobuf import timestamp_pb2 as _timestamp_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class PolicyMode(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    POLICY_MODE_UNSPECIFIED: _ClassVar[PolicyMode]
    POLICY_MODE_PIN: _ClassVar[PolicyMode]
    POLICY_MODE_FOLLOW: _ClassVar[PolicyMode]

class RunStatus(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    RUN_STATUS_UNSPECIFIED: _ClassVar[RunStatus]
    RUN_STATUS_RUNNING: _ClassVar[RunStatus]
    RUN_STATUS_COMPLETED: _ClassVar[RunStatus]
    RUN_STATUS_STOPPED: _ClassVar[RunStatus]
    RUN_STATUS_CANCELLED: _ClassVar[RunStatus]
    RUN_STATUS_FAILED: _ClassVar[RunStatus]
    RUN_STATUS_WAITING: _ClassVar[RunStatus]
POLICY_MODE_UNSPECIFIED: PolicyMode
POLICY_MODE_PIN: PolicyMode
POLICY_MODE_FOLLOW: PolicyMode
RUN_STATUS_UNSPECIFIED: RunStatus
RUN_STATUS_RUNNING: RunStatus
RUN_STATUS_COMPLETED: RunStatus
RUN_STATUS_STOPPED: RunStatus
RUN_STATUS_CANCELLED: RunStatus
RUN_STATUS_FAILED: RunStatus
RUN_STATUS_WAITING: RunStatus

class StartRunRequest(_message.Message):
    __slots__ = ("task", "thread", "agent", "policy_mode", "request_id", "attachments")
    TASK_FIELD_NUMBER: _ClassVar[int]
    THREAD_FIELD_NUMBER: _ClassVar[int]
    AGENT_FIELD_NUMBER: _ClassVar[int]
    POLICY_MODE_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    ATTACHMENTS_FIELD_NUMBER: _ClassVar[int]
    task: str
    thread: str
    agent: str
    policy_mode: PolicyMode
    request_id: str
    attachments: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, task: _Optional[str] = ..., thread: _Optional[str] = ..., agent: _Optional[str] = ..., policy_mode: _Optional[_Union[PolicyMode, str]] = ..., request_id: _Optional[str] = ..., attachments: _Optional[_Iterable[str]] = ...) -> None: ...

class StartRunResponse(_message.Message):
    __slots__ = ("run",)
    RUN_FIELD_NUMBER: _ClassVar[int]
    run: Run
    def __init__(self, run: _Optional[_Union[Run, _Mapping]] = ...) -> None: ...

class WatchRunRequest(_message.Message):
    __slots__ = ("run_id", "from_sequence")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    FROM_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    from_sequence: int
    def __init__(self, run_id: _Optional[str] = ..., from_sequence: _Optional[int] = ...) -> None: ...

class WatchRunResponse(_message.Message):
    __slots__ = ("event",)
    EVENT_FIELD_NUMBER: _ClassVar[int]
    event: Event
    def __init__(self, event: _Optional[_Union[Event, _Mapping]] = ...) -> None: ...

class GetRunRequest(_message.Message):
    __slots__ = ("run_id",)
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    def __init__(self, run_id: _Optional[str] = ...) -> None: ...

class GetRunResponse(_message.Message):
    __slots__ = ("run",)
    RUN_FIELD_NUMBER: _ClassVar[int]
    run: Run
    def __init__(self, run: _Optional[_Union[Run, _Mapping]] = ...) -> None: ...

class ListRunsRequest(_message.Message):
    __slots__ = ("thread", "statuses", "agent", "started_since", "started_until", "page_size", "page_token", "started_by")
    THREAD_FIELD_NUMBER: _ClassVar[int]
    STATUSES_FIELD_NUMBER: _ClassVar[int]
    AGENT_FIELD_NUMBER: _ClassVar[int]
    STARTED_SINCE_FIELD_NUMBER: _ClassVar[int]
    STARTED_UNTIL_FIELD_NUMBER: _ClassVar[int]
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    STARTED_BY_FIELD_NUMBER: _ClassVar[int]
    thread: str
    statuses: _containers.RepeatedScalarFieldContainer[RunStatus]
    agent: str
    started_since: _timestamp_pb2.Timestamp
    started_until: _timestamp_pb2.Timestamp
    page_size: int
    page_token: str
    started_by: str
    def __init__(self, thread: _Optional[str] = ..., statuses: _Optional[_Iterable[_Union[RunStatus, str]]] = ..., agent: _Optional[str] = ..., started_since: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., started_until: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., page_size: _Optional[int] = ..., page_token: _Optional[str] = ..., started_by: _Optional[str] = ...) -> None: ...

class ListRunsResponse(_message.Message):
    __slots__ = ("runs", "next_page_token")
    RUNS_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    runs: _containers.RepeatedCompositeFieldContainer[Run]
    next_page_token: str
    def __init__(self, runs: _Optional[_Iterable[_Union[Run, _Mapping]]] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class CancelRunRequest(_message.Message):
    __slots__ = ("run_id",)
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    def __init__(self, run_id: _Optional[str] = ...) -> None: ...

class CancelRunResponse(_message.Message):
    __slots__ = ("run",)
    RUN_FIELD_NUMBER: _ClassVar[int]
    run: Run
    def __init__(self, run: _Optional[_Union[Run, _Mapping]] = ...) -> None: ...

class Stop(_message.Message):
    __slots__ = ("hook", "rule", "reason")
    HOOK_FIELD_NUMBER: _ClassVar[int]
    RULE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    hook: str
    rule: str
    reason: str
    def __init__(self, hook: _Optional[str] = ..., rule: _Optional[str] = ..., reason: _Optional[str] = ...) -> None: ...

class Run(_message.Message):
    __slots__ = ("id", "thread", "agent", "status", "stop", "started_at", "finished_at", "last_sequence", "task", "policy_mode", "policy_version", "started_by", "steps", "usage", "models")
    ID_FIELD_NUMBER: _ClassVar[int]
    THREAD_FIELD_NUMBER: _ClassVar[int]
    AGENT_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    STOP_FIELD_NUMBER: _ClassVar[int]
    STARTED_AT_FIELD_NUMBER: _ClassVar[int]
    FINISHED_AT_FIELD_NUMBER: _ClassVar[int]
    LAST_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    TASK_FIELD_NUMBER: _ClassVar[int]
    POLICY_MODE_FIELD_NUMBER: _ClassVar[int]
    POLICY_VERSION_FIELD_NUMBER: _ClassVar[int]
    STARTED_BY_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    USAGE_FIELD_NUMBER: _ClassVar[int]
    MODELS_FIELD_NUMBER: _ClassVar[int]
    id: str
    thread: str
    agent: str
    status: RunStatus
    stop: Stop
    started_at: _timestamp_pb2.Timestamp
    finished_at: _timestamp_pb2.Timestamp
    last_sequence: int
    task: str
    policy_mode: PolicyMode
    policy_version: str
    started_by: str
    steps: int
    usage: _usage_service_pb2.Usage
    models: _containers.RepeatedCompositeFieldContainer[ModelUse]
    def __init__(self, id: _Optional[str] = ..., thread: _Optional[str] = ..., agent: _Optional[str] = ..., status: _Optional[_Union[RunStatus, str]] = ..., stop: _Optional[_Union[Stop, _Mapping]] = ..., started_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., finished_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., last_sequence: _Optional[int] = ..., task: _Optional[str] = ..., policy_mode: _Optional[_Union[PolicyMode, str]] = ..., policy_version: _Optional[str] = ..., started_by: _Optional[str] = ..., steps: _Optional[int] = ..., usage: _Optional[_Union[_usage_service_pb2.Usage, _Mapping]] = ..., models: _Optional[_Iterable[_Union[ModelUse, _Mapping]]] = ...) -> None: ...

class ModelUse(_message.Message):
    __slots__ = ("agent", "model", "usage", "first_token_ms")
    AGENT_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    USAGE_FIELD_NUMBER: _ClassVar[int]
    FIRST_TOKEN_MS_FIELD_NUMBER: _ClassVar[int]
    agent: str
    model: str
    usage: _usage_service_pb2.Usage
    first_token_ms: float
    def __init__(self, agent: _Optional[str] = ..., model: _Optional[str] = ..., usage: _Optional[_Union[_usage_service_pb2.Usage, _Mapping]] = ..., first_token_ms: _Optional[float] = ...) -> None: ...

class Event(_message.Message):
    __slots__ = ("sequence", "type", "at", "payload_json")
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    TYPE_FIELD_NUMBER: _ClassVar[int]
    AT_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_JSON_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    type: str
    at: _timestamp_pb2.Timestamp
    payload_json: str
    def __init__(self, sequence: _Optional[int] = ..., type: _Optional[str] = ..., at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., payload_json: _Optional[str] = ...) -> None: ...
