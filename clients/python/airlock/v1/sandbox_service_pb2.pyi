import datetime

from google.protobuf import timestamp_pb2 as _timestamp_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class SandboxState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    SANDBOX_STATE_UNSPECIFIED: _ClassVar[SandboxState]
    SANDBOX_STATE_CREATING: _ClassVar[SandboxState]
    SANDBOX_STATE_RUNNING: _ClassVar[SandboxState]
    SANDBOX_STATE_IDLE_STOPPED: _ClassVar[SandboxState]
    SANDBOX_STATE_FAILED: _ClassVar[SandboxState]
    SANDBOX_STATE_REMOVED: _ClassVar[SandboxState]

class SnapshotKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    SNAPSHOT_KIND_UNSPECIFIED: _ClassVar[SnapshotKind]
    SNAPSHOT_KIND_ASKED: _ClassVar[SnapshotKind]
    SNAPSHOT_KIND_STEP: _ClassVar[SnapshotKind]
    SNAPSHOT_KIND_RUN: _ClassVar[SnapshotKind]
    SNAPSHOT_KIND_FORK: _ClassVar[SnapshotKind]
SANDBOX_STATE_UNSPECIFIED: SandboxState
SANDBOX_STATE_CREATING: SandboxState
SANDBOX_STATE_RUNNING: SandboxState
SANDBOX_STATE_IDLE_STOPPED: SandboxState
SANDBOX_STATE_FAILED: SandboxState
SANDBOX_STATE_REMOVED: SandboxState
SNAPSHOT_KIND_UNSPECIFIED: SnapshotKind
SNAPSHOT_KIND_ASKED: SnapshotKind
SNAPSHOT_KIND_STEP: SnapshotKind
SNAPSHOT_KIND_RUN: SnapshotKind
SNAPSHOT_KIND_FORK: SnapshotKind

class Sandbox(_message.Message):
    __slots__ = ("id", "thread", "image", "runtime", "created_at", "calls", "state", "idle_since", "stops_at", "stopped_since", "removes_at")
    ID_FIELD_NUMBER: _ClassVar[int]
    THREAD_FIELD_NUMBER: _ClassVar[int]
    IMAGE_FIELD_NUMBER: _ClassVar[int]
    RUNTIME_FIELD_NUMBER: _ClassVar[int]
    CREATED_AT_FIELD_NUMBER: _ClassVar[int]
    CALLS_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    IDLE_SINCE_FIELD_NUMBER: _ClassVar[int]
    STOPS_AT_FIELD_NUMBER: _ClassVar[int]
    STOPPED_SINCE_FIELD_NUMBER: _ClassVar[int]
    REMOVES_AT_FIELD_NUMBER: _ClassVar[int]
    id: str
    thread: str
    image: str
    runtime: str
    created_at: _timestamp_pb2.Timestamp
    calls: int
    state: SandboxState
    idle_since: _timestamp_pb2.Timestamp
    stops_at: _timestamp_pb2.Timestamp
    stopped_since: _timestamp_pb2.Timestamp
    removes_at: _timestamp_pb2.Timestamp
    def __init__(self, id: _Optional[str] = ..., thread: _Optional[str] = ..., image: _Optional[str] = ..., runtime: _Optional[str] = ..., created_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., calls: _Optional[int] = ..., state: _Optional[_Union[SandboxState, str]] = ..., idle_since: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., stops_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., stopped_since: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., removes_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class SandboxTransition(_message.Message):
    __slots__ = ("thread", "sandbox_id", "state", "reason", "at", "engine", "id")
    THREAD_FIELD_NUMBER: _ClassVar[int]
    SANDBOX_ID_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    AT_FIELD_NUMBER: _ClassVar[int]
    ENGINE_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    thread: str
    sandbox_id: str
    state: SandboxState
    reason: str
    at: _timestamp_pb2.Timestamp
    engine: str
    id: int
    def __init__(self, thread: _Optional[str] = ..., sandbox_id: _Optional[str] = ..., state: _Optional[_Union[SandboxState, str]] = ..., reason: _Optional[str] = ..., at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., engine: _Optional[str] = ..., id: _Optional[int] = ...) -> None: ...

class ListSandboxTransitionsRequest(_message.Message):
    __slots__ = ("page_size", "page_token", "thread")
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    THREAD_FIELD_NUMBER: _ClassVar[int]
    page_size: int
    page_token: str
    thread: str
    def __init__(self, page_size: _Optional[int] = ..., page_token: _Optional[str] = ..., thread: _Optional[str] = ...) -> None: ...

class ListSandboxTransitionsResponse(_message.Message):
    __slots__ = ("transitions", "next_page_token")
    TRANSITIONS_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    transitions: _containers.RepeatedCompositeFieldContainer[SandboxTransition]
    next_page_token: str
    def __init__(self, transitions: _Optional[_Iterable[_Union[SandboxTransition, _Mapping]]] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class WatchSandboxTransitionsRequest(_message.Message):
    __slots__ = ("thread", "after_id")
    THREAD_FIELD_NUMBER: _ClassVar[int]
    AFTER_ID_FIELD_NUMBER: _ClassVar[int]
    thread: str
    after_id: int
    def __init__(self, thread: _Optional[str] = ..., after_id: _Optional[int] = ...) -> None: ...

class WatchSandboxTransitionsResponse(_message.Message):
    __slots__ = ("transition",)
    TRANSITION_FIELD_NUMBER: _ClassVar[int]
    transition: SandboxTransition
    def __init__(self, transition: _Optional[_Union[SandboxTransition, _Mapping]] = ...) -> None: ...

class ListSandboxesRequest(_message.Message):
    __slots__ = ("page_size", "page_token", "runtime", "image", "state")
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    RUNTIME_FIELD_NUMBER: _ClassVar[int]
    IMAGE_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    page_size: int
    page_token: str
    runtime: str
    image: str
    state: SandboxState
    def __init__(self, page_size: _Optional[int] = ..., page_token: _Optional[str] = ..., runtime: _Optional[str] = ..., image: _Optional[str] = ..., state: _Optional[_Union[SandboxState, str]] = ...) -> None: ...

class ListSandboxesResponse(_message.Message):
    __slots__ = ("sandboxes", "next_page_token")
    SANDBOXES_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    sandboxes: _containers.RepeatedCompositeFieldContainer[Sandbox]
    next_page_token: str
    def __init__(self, sandboxes: _Optional[_Iterable[_Union[Sandbox, _Mapping]]] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class GetSandboxRequest(_message.Message):
    __slots__ = ("thread",)
    THREAD_FIELD_NUMBER: _ClassVar[int]
    thread: str
    def __init__(self, thread: _Optional[str] = ...) -> None: ...

class GetSandboxResponse(_message.Message):
    __slots__ = ("sandbox",)
    SANDBOX_FIELD_NUMBER: _ClassVar[int]
    sandbox: Sandbox
    def __init__(self, sandbox: _Optional[_Union[Sandbox, _Mapping]] = ...) -> None: ...

class StopSandboxRequest(_message.Message):
    __slots__ = ("thread",)
    THREAD_FIELD_NUMBER: _ClassVar[int]
    thread: str
    def __init__(self, thread: _Optional[str] = ...) -> None: ...

class StopSandboxResponse(_message.Message):
    __slots__ = ("sandbox",)
    SANDBOX_FIELD_NUMBER: _ClassVar[int]
    sandbox: Sandbox
    def __init__(self, sandbox: _Optional[_Union[Sandbox, _Mapping]] = ...) -> None: ...

class CreateSandboxRequest(_message.Message):
    __slots__ = ("thread",)
    THREAD_FIELD_NUMBER: _ClassVar[int]
    thread: str
    def __init__(self, thread: _Optional[str] = ...) -> None: ...

class CreateSandboxResponse(_message.Message):
    __slots__ = ("sandbox",)
    SANDBOX_FIELD_NUMBER: _ClassVar[int]
    sandbox: Sandbox
    def __init__(self, sandbox: _Optional[_Union[Sandbox, _Mapping]] = ...) -> None: ...

class ResumeSandboxRequest(_message.Message):
    __slots__ = ("thread",)
    THREAD_FIELD_NUMBER: _ClassVar[int]
    thread: str
    def __init__(self, thread: _Optional[str] = ...) -> None: ...

class ResumeSandboxResponse(_message.Message):
    __slots__ = ("sandbox",)
    SANDBOX_FIELD_NUMBER: _ClassVar[int]
    sandbox: Sandbox
    def __init__(self, sandbox: _Optional[_Union[Sandbox, _Mapping]] = ...) -> None: ...

class DeleteSandboxRequest(_message.Message):
    __slots__ = ("thread",)
    THREAD_FIELD_NUMBER: _ClassVar[int]
    thread: str
    def __init__(self, thread: _Optional[str] = ...) -> None: ...

class DeleteSandboxResponse(_message.Message):
    __slots__ = ("sandbox", "files_removed")
    SANDBOX_FIELD_NUMBER: _ClassVar[int]
    FILES_REMOVED_FIELD_NUMBER: _ClassVar[int]
    sandbox: Sandbox
    files_removed: bool
    def __init__(self, sandbox: _Optional[_Union[Sandbox, _Mapping]] = ..., files_removed: _Optional[bool] = ...) -> None: ...

class SandboxStats(_message.Message):
    __slots__ = ("id", "thread", "runtime", "calls", "cpu_s", "cpus", "cpus_limit", "memory_bytes", "memory_limit_bytes", "memory_peak_bytes", "pids", "pids_limit", "workspace", "tmp")
    ID_FIELD_NUMBER: _ClassVar[int]
    THREAD_FIELD_NUMBER: _ClassVar[int]
    RUNTIME_FIELD_NUMBER: _ClassVar[int]
    CALLS_FIELD_NUMBER: _ClassVar[int]
    CPU_S_FIELD_NUMBER: _ClassVar[int]
    CPUS_FIELD_NUMBER: _ClassVar[int]
    CPUS_LIMIT_FIELD_NUMBER: _ClassVar[int]
    MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    MEMORY_LIMIT_BYTES_FIELD_NUMBER: _ClassVar[int]
    MEMORY_PEAK_BYTES_FIELD_NUMBER: _ClassVar[int]
    PIDS_FIELD_NUMBER: _ClassVar[int]
    PIDS_LIMIT_FIELD_NUMBER: _ClassVar[int]
    WORKSPACE_FIELD_NUMBER: _ClassVar[int]
    TMP_FIELD_NUMBER: _ClassVar[int]
    id: str
    thread: str
    runtime: str
    calls: int
    cpu_s: float
    cpus: float
    cpus_limit: float
    memory_bytes: int
    memory_limit_bytes: int
    memory_peak_bytes: int
    pids: int
    pids_limit: int
    workspace: DiskStats
    tmp: DiskStats
    def __init__(self, id: _Optional[str] = ..., thread: _Optional[str] = ..., runtime: _Optional[str] = ..., calls: _Optional[int] = ..., cpu_s: _Optional[float] = ..., cpus: _Optional[float] = ..., cpus_limit: _Optional[float] = ..., memory_bytes: _Optional[int] = ..., memory_limit_bytes: _Optional[int] = ..., memory_peak_bytes: _Optional[int] = ..., pids: _Optional[int] = ..., pids_limit: _Optional[int] = ..., workspace: _Optional[_Union[DiskStats, _Mapping]] = ..., tmp: _Optional[_Union[DiskStats, _Mapping]] = ...) -> None: ...

class DiskStats(_message.Message):
    __slots__ = ("used_bytes", "partial", "limit_bytes")
    USED_BYTES_FIELD_NUMBER: _ClassVar[int]
    PARTIAL_FIELD_NUMBER: _ClassVar[int]
    LIMIT_BYTES_FIELD_NUMBER: _ClassVar[int]
    used_bytes: int
    partial: bool
    limit_bytes: int
    def __init__(self, used_bytes: _Optional[int] = ..., partial: _Optional[bool] = ..., limit_bytes: _Optional[int] = ...) -> None: ...

class GetSandboxStatsRequest(_message.Message):
    __slots__ = ("thread",)
    THREAD_FIELD_NUMBER: _ClassVar[int]
    thread: str
    def __init__(self, thread: _Optional[str] = ...) -> None: ...

class GetSandboxStatsResponse(_message.Message):
    __slots__ = ("stats",)
    STATS_FIELD_NUMBER: _ClassVar[int]
    stats: SandboxStats
    def __init__(self, stats: _Optional[_Union[SandboxStats, _Mapping]] = ...) -> None: ...

class WatchSandboxStatsRequest(_message.Message):
    __slots__ = ("thread", "interval_ms", "readings")
    THREAD_FIELD_NUMBER: _ClassVar[int]
    INTERVAL_MS_FIELD_NUMBER: _ClassVar[int]
    READINGS_FIELD_NUMBER: _ClassVar[int]
    thread: str
    interval_ms: int
    readings: int
    def __init__(self, thread: _Optional[str] = ..., interval_ms: _Optional[int] = ..., readings: _Optional[int] = ...) -> None: ...

class WatchSandboxStatsResponse(_message.Message):
    __slots__ = ("stats",)
    STATS_FIELD_NUMBER: _ClassVar[int]
    stats: _containers.RepeatedCompositeFieldContainer[SandboxStats]
    def __init__(self, stats: _Optional[_Iterable[_Union[SandboxStats, _Mapping]]] = ...) -> None: ...

class Snapshot(_message.Message):
    __slots__ = ("id", "thread", "created_at", "created_by", "comment", "run_id", "messages", "files", "size_bytes", "stored_bytes", "skipped", "stripped", "kind", "step")
    ID_FIELD_NUMBER: _ClassVar[int]
    THREAD_FIELD_NUMBER: _ClassVar[int]
    CREATED_AT_FIELD_NUMBER: _ClassVar[int]
    CREATED_BY_FIELD_NUMBER: _ClassVar[int]
    COMMENT_FIELD_NUMBER: _ClassVar[int]
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    FILES_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    STORED_BYTES_FIELD_NUMBER: _ClassVar[int]
    SKIPPED_FIELD_NUMBER: _ClassVar[int]
    STRIPPED_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    id: str
    thread: str
    created_at: _timestamp_pb2.Timestamp
    created_by: str
    comment: str
    run_id: str
    messages: int
    files: int
    size_bytes: int
    stored_bytes: int
    skipped: int
    stripped: int
    kind: SnapshotKind
    step: int
    def __init__(self, id: _Optional[str] = ..., thread: _Optional[str] = ..., created_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., created_by: _Optional[str] = ..., comment: _Optional[str] = ..., run_id: _Optional[str] = ..., messages: _Optional[int] = ..., files: _Optional[int] = ..., size_bytes: _Optional[int] = ..., stored_bytes: _Optional[int] = ..., skipped: _Optional[int] = ..., stripped: _Optional[int] = ..., kind: _Optional[_Union[SnapshotKind, str]] = ..., step: _Optional[int] = ...) -> None: ...

class CreateSnapshotRequest(_message.Message):
    __slots__ = ("thread", "comment", "request_id")
    THREAD_FIELD_NUMBER: _ClassVar[int]
    COMMENT_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    thread: str
    comment: str
    request_id: str
    def __init__(self, thread: _Optional[str] = ..., comment: _Optional[str] = ..., request_id: _Optional[str] = ...) -> None: ...

class CreateSnapshotResponse(_message.Message):
    __slots__ = ("snapshot",)
    SNAPSHOT_FIELD_NUMBER: _ClassVar[int]
    snapshot: Snapshot
    def __init__(self, snapshot: _Optional[_Union[Snapshot, _Mapping]] = ...) -> None: ...

class ListSnapshotsRequest(_message.Message):
    __slots__ = ("page_size", "page_token", "thread")
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    THREAD_FIELD_NUMBER: _ClassVar[int]
    page_size: int
    page_token: str
    thread: str
    def __init__(self, page_size: _Optional[int] = ..., page_token: _Optional[str] = ..., thread: _Optional[str] = ...) -> None: ...

class ListSnapshotsResponse(_message.Message):
    __slots__ = ("snapshots", "next_page_token")
    SNAPSHOTS_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    snapshots: _containers.RepeatedCompositeFieldContainer[Snapshot]
    next_page_token: str
    def __init__(self, snapshots: _Optional[_Iterable[_Union[Snapshot, _Mapping]]] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class GetSnapshotRequest(_message.Message):
    __slots__ = ("snapshot_id",)
    SNAPSHOT_ID_FIELD_NUMBER: _ClassVar[int]
    snapshot_id: str
    def __init__(self, snapshot_id: _Optional[str] = ...) -> None: ...

class GetSnapshotResponse(_message.Message):
    __slots__ = ("snapshot",)
    SNAPSHOT_FIELD_NUMBER: _ClassVar[int]
    snapshot: Snapshot
    def __init__(self, snapshot: _Optional[_Union[Snapshot, _Mapping]] = ...) -> None: ...

class DeleteSnapshotRequest(_message.Message):
    __slots__ = ("snapshot_id",)
    SNAPSHOT_ID_FIELD_NUMBER: _ClassVar[int]
    snapshot_id: str
    def __init__(self, snapshot_id: _Optional[str] = ...) -> None: ...

class DeleteSnapshotResponse(_message.Message):
    __slots__ = ("snapshot",)
    SNAPSHOT_FIELD_NUMBER: _ClassVar[int]
    snapshot: Snapshot
    def __init__(self, snapshot: _Optional[_Union[Snapshot, _Mapping]] = ...) -> None: ...

class RestoreSnapshotRequest(_message.Message):
    __slots__ = ("snapshot_id", "thread", "request_id")
    SNAPSHOT_ID_FIELD_NUMBER: _ClassVar[int]
    THREAD_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    snapshot_id: str
    thread: str
    request_id: str
    def __init__(self, snapshot_id: _Optional[str] = ..., thread: _Optional[str] = ..., request_id: _Optional[str] = ...) -> None: ...

class RestoreSnapshotResponse(_message.Message):
    __slots__ = ("snapshot", "thread")
    SNAPSHOT_FIELD_NUMBER: _ClassVar[int]
    THREAD_FIELD_NUMBER: _ClassVar[int]
    snapshot: Snapshot
    thread: str
    def __init__(self, snapshot: _Optional[_Union[Snapshot, _Mapping]] = ..., thread: _Optional[str] = ...) -> None: ...

class ForkThreadRequest(_message.Message):
    __slots__ = ("thread", "new_thread", "run_id", "step", "snapshot_id", "request_id")
    THREAD_FIELD_NUMBER: _ClassVar[int]
    NEW_THREAD_FIELD_NUMBER: _ClassVar[int]
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_ID_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    thread: str
    new_thread: str
    run_id: str
    step: int
    snapshot_id: str
    request_id: str
    def __init__(self, thread: _Optional[str] = ..., new_thread: _Optional[str] = ..., run_id: _Optional[str] = ..., step: _Optional[int] = ..., snapshot_id: _Optional[str] = ..., request_id: _Optional[str] = ...) -> None: ...

class ForkThreadResponse(_message.Message):
    __slots__ = ("thread", "of_thread", "snapshot_id", "run_id", "step", "messages")
    THREAD_FIELD_NUMBER: _ClassVar[int]
    OF_THREAD_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_ID_FIELD_NUMBER: _ClassVar[int]
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    thread: str
    of_thread: str
    snapshot_id: str
    run_id: str
    step: int
    messages: int
    def __init__(self, thread: _Optional[str] = ..., of_thread: _Optional[str] = ..., snapshot_id: _Optional[str] = ..., run_id: _Optional[str] = ..., step: _Optional[int] = ..., messages: _Optional[int] = ...) -> None: ...

class ForwardPortRequest(_message.Message):
    __slots__ = ("forward", "data", "end")
    FORWARD_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    forward: ForwardPort
    data: bytes
    end: bool
    def __init__(self, forward: _Optional[_Union[ForwardPort, _Mapping]] = ..., data: _Optional[bytes] = ..., end: _Optional[bool] = ...) -> None: ...

class ForwardPort(_message.Message):
    __slots__ = ("thread", "port")
    THREAD_FIELD_NUMBER: _ClassVar[int]
    PORT_FIELD_NUMBER: _ClassVar[int]
    thread: str
    port: int
    def __init__(self, thread: _Optional[str] = ..., port: _Optional[int] = ...) -> None: ...

class ForwardPortResponse(_message.Message):
    __slots__ = ("opened", "data", "end")
    OPENED_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    opened: bool
    data: bytes
    end: bool
    def __init__(self, opened: _Optional[bool] = ..., data: _Optional[bytes] = ..., end: _Optional[bool] = ...) -> None: ...
