from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class OutputStream(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    OUTPUT_STREAM_UNSPECIFIED: _ClassVar[OutputStream]
    OUTPUT_STREAM_STDOUT: _ClassVar[OutputStream]
    OUTPUT_STREAM_STDERR: _ClassVar[OutputStream]

class Outcome(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    OUTCOME_UNSPECIFIED: _ClassVar[Outcome]
    OUTCOME_EXITED: _ClassVar[Outcome]
    OUTCOME_SIGNALLED: _ClassVar[Outcome]
    OUTCOME_TIMED_OUT: _ClassVar[Outcome]
    OUTCOME_CANCELLED: _ClassVar[Outcome]
    OUTCOME_OUT_OF_MEMORY: _ClassVar[Outcome]
    OUTCOME_PIDS_LIMIT: _ClassVar[Outcome]
    OUTCOME_FAILED_TO_START: _ClassVar[Outcome]
    OUTCOME_OUTPUT_LIMIT: _ClassVar[Outcome]
    OUTCOME_DISK_LIMIT: _ClassVar[Outcome]

class EntryType(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ENTRY_TYPE_UNSPECIFIED: _ClassVar[EntryType]
    ENTRY_TYPE_FILE: _ClassVar[EntryType]
    ENTRY_TYPE_DIRECTORY: _ClassVar[EntryType]
    ENTRY_TYPE_SYMLINK: _ClassVar[EntryType]
    ENTRY_TYPE_OTHER: _ClassVar[EntryType]

class FailureKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    FAILURE_KIND_UNSPECIFIED: _ClassVar[FailureKind]
    FAILURE_KIND_NOT_FOUND: _ClassVar[FailureKind]
    FAILURE_KIND_PERMISSION_DENIED: _ClassVar[FailureKind]
    FAILURE_KIND_IS_A_DIRECTORY: _ClassVar[FailureKind]
    FAILURE_KIND_NOT_A_DIRECTORY: _ClassVar[FailureKind]
    FAILURE_KIND_INVALID_PATH: _ClassVar[FailureKind]
    FAILURE_KIND_NO_SPACE: _ClassVar[FailureKind]
    FAILURE_KIND_TOO_LARGE: _ClassVar[FailureKind]
    FAILURE_KIND_CONFLICT: _ClassVar[FailureKind]
    FAILURE_KIND_INVALID_ARGUMENT: _ClassVar[FailureKind]
    FAILURE_KIND_INTERNAL: _ClassVar[FailureKind]
    FAILURE_KIND_EXHAUSTED: _ClassVar[FailureKind]
    FAILURE_KIND_INPUT_GAP: _ClassVar[FailureKind]
    FAILURE_KIND_RETIRED: _ClassVar[FailureKind]

class Refusal(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    REFUSAL_UNSPECIFIED: _ClassVar[Refusal]
    REFUSAL_BUSY: _ClassVar[Refusal]
    REFUSAL_ATTACHED: _ClassVar[Refusal]
OUTPUT_STREAM_UNSPECIFIED: OutputStream
OUTPUT_STREAM_STDOUT: OutputStream
OUTPUT_STREAM_STDERR: OutputStream
OUTCOME_UNSPECIFIED: Outcome
OUTCOME_EXITED: Outcome
OUTCOME_SIGNALLED: Outcome
OUTCOME_TIMED_OUT: Outcome
OUTCOME_CANCELLED: Outcome
OUTCOME_OUT_OF_MEMORY: Outcome
OUTCOME_PIDS_LIMIT: Outcome
OUTCOME_FAILED_TO_START: Outcome
OUTCOME_OUTPUT_LIMIT: Outcome
OUTCOME_DISK_LIMIT: Outcome
ENTRY_TYPE_UNSPECIFIED: EntryType
ENTRY_TYPE_FILE: EntryType
ENTRY_TYPE_DIRECTORY: EntryType
ENTRY_TYPE_SYMLINK: EntryType
ENTRY_TYPE_OTHER: EntryType
FAILURE_KIND_UNSPECIFIED: FailureKind
FAILURE_KIND_NOT_FOUND: FailureKind
FAILURE_KIND_PERMISSION_DENIED: FailureKind
FAILURE_KIND_IS_A_DIRECTORY: FailureKind
FAILURE_KIND_NOT_A_DIRECTORY: FailureKind
FAILURE_KIND_INVALID_PATH: FailureKind
FAILURE_KIND_NO_SPACE: FailureKind
FAILURE_KIND_TOO_LARGE: FailureKind
FAILURE_KIND_CONFLICT: FailureKind
FAILURE_KIND_INVALID_ARGUMENT: FailureKind
FAILURE_KIND_INTERNAL: FailureKind
FAILURE_KIND_EXHAUSTED: FailureKind
FAILURE_KIND_INPUT_GAP: FailureKind
FAILURE_KIND_RETIRED: FailureKind
REFUSAL_UNSPECIFIED: Refusal
REFUSAL_BUSY: Refusal
REFUSAL_ATTACHED: Refusal

class Request(_message.Message):
    __slots__ = ("hello", "exec", "stat", "list", "read", "read_lines", "write", "edit", "glob", "grep", "mkdir", "remove", "rename", "health", "process_start", "process_list", "process_read", "process_write", "process_resize", "process_signal", "process_wait", "process_remove", "proxy", "proxy_accept", "port_connect", "attach", "archive", "refuse_hard_links")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    EXEC_FIELD_NUMBER: _ClassVar[int]
    STAT_FIELD_NUMBER: _ClassVar[int]
    LIST_FIELD_NUMBER: _ClassVar[int]
    READ_FIELD_NUMBER: _ClassVar[int]
    READ_LINES_FIELD_NUMBER: _ClassVar[int]
    WRITE_FIELD_NUMBER: _ClassVar[int]
    EDIT_FIELD_NUMBER: _ClassVar[int]
    GLOB_FIELD_NUMBER: _ClassVar[int]
    GREP_FIELD_NUMBER: _ClassVar[int]
    MKDIR_FIELD_NUMBER: _ClassVar[int]
    REMOVE_FIELD_NUMBER: _ClassVar[int]
    RENAME_FIELD_NUMBER: _ClassVar[int]
    HEALTH_FIELD_NUMBER: _ClassVar[int]
    PROCESS_START_FIELD_NUMBER: _ClassVar[int]
    PROCESS_LIST_FIELD_NUMBER: _ClassVar[int]
    PROCESS_READ_FIELD_NUMBER: _ClassVar[int]
    PROCESS_WRITE_FIELD_NUMBER: _ClassVar[int]
    PROCESS_RESIZE_FIELD_NUMBER: _ClassVar[int]
    PROCESS_SIGNAL_FIELD_NUMBER: _ClassVar[int]
    PROCESS_WAIT_FIELD_NUMBER: _ClassVar[int]
    PROCESS_REMOVE_FIELD_NUMBER: _ClassVar[int]
    PROXY_FIELD_NUMBER: _ClassVar[int]
    PROXY_ACCEPT_FIELD_NUMBER: _ClassVar[int]
    PORT_CONNECT_FIELD_NUMBER: _ClassVar[int]
    ATTACH_FIELD_NUMBER: _ClassVar[int]
    ARCHIVE_FIELD_NUMBER: _ClassVar[int]
    REFUSE_HARD_LINKS_FIELD_NUMBER: _ClassVar[int]
    hello: HelloRequest
    exec: ExecRequest
    stat: StatRequest
    list: ListRequest
    read: ReadRequest
    read_lines: ReadLinesRequest
    write: WriteRequest
    edit: EditRequest
    glob: GlobRequest
    grep: GrepRequest
    mkdir: MkdirRequest
    remove: RemoveRequest
    rename: RenameRequest
    health: HealthRequest
    process_start: ProcessStartRequest
    process_list: ProcessListRequest
    process_read: ProcessReadRequest
    process_write: ProcessWriteRequest
    process_resize: ProcessResizeRequest
    process_signal: ProcessSignalRequest
    process_wait: ProcessWaitRequest
    process_remove: ProcessRemoveRequest
    proxy: ProxyRequest
    proxy_accept: ProxyAcceptRequest
    port_connect: PortConnectRequest
    attach: AttachRequest
    archive: ArchiveRequest
    refuse_hard_links: bool
    def __init__(self, hello: _Optional[_Union[HelloRequest, _Mapping]] = ..., exec: _Optional[_Union[ExecRequest, _Mapping]] = ..., stat: _Optional[_Union[StatRequest, _Mapping]] = ..., list: _Optional[_Union[ListRequest, _Mapping]] = ..., read: _Optional[_Union[ReadRequest, _Mapping]] = ..., read_lines: _Optional[_Union[ReadLinesRequest, _Mapping]] = ..., write: _Optional[_Union[WriteRequest, _Mapping]] = ..., edit: _Optional[_Union[EditRequest, _Mapping]] = ..., glob: _Optional[_Union[GlobRequest, _Mapping]] = ..., grep: _Optional[_Union[GrepRequest, _Mapping]] = ..., mkdir: _Optional[_Union[MkdirRequest, _Mapping]] = ..., remove: _Optional[_Union[RemoveRequest, _Mapping]] = ..., rename: _Optional[_Union[RenameRequest, _Mapping]] = ..., health: _Optional[_Union[HealthRequest, _Mapping]] = ..., process_start: _Optional[_Union[ProcessStartRequest, _Mapping]] = ..., process_list: _Optional[_Union[ProcessListRequest, _Mapping]] = ..., process_read: _Optional[_Union[ProcessReadRequest, _Mapping]] = ..., process_write: _Optional[_Union[ProcessWriteRequest, _Mapping]] = ..., process_resize: _Optional[_Union[ProcessResizeRequest, _Mapping]] = ..., process_signal: _Optional[_Union[ProcessSignalRequest, _Mapping]] = ..., process_wait: _Optional[_Union[ProcessWaitRequest, _Mapping]] = ..., process_remove: _Optional[_Union[ProcessRemoveRequest, _Mapping]] = ..., proxy: _Optional[_Union[ProxyRequest, _Mapping]] = ..., proxy_accept: _Optional[_Union[ProxyAcceptRequest, _Mapping]] = ..., port_connect: _Optional[_Union[PortConnectRequest, _Mapping]] = ..., attach: _Optional[_Union[AttachRequest, _Mapping]] = ..., archive: _Optional[_Union[ArchiveRequest, _Mapping]] = ..., refuse_hard_links: _Optional[bool] = ...) -> None: ...

class Input(_message.Message):
    __slots__ = ("data", "end", "in_use", "retire")
    DATA_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    IN_USE_FIELD_NUMBER: _ClassVar[int]
    RETIRE_FIELD_NUMBER: _ClassVar[int]
    data: bytes
    end: bool
    in_use: bool
    retire: RetireRequest
    def __init__(self, data: _Optional[bytes] = ..., end: _Optional[bool] = ..., in_use: _Optional[bool] = ..., retire: _Optional[_Union[RetireRequest, _Mapping]] = ...) -> None: ...

class Reply(_message.Message):
    __slots__ = ("started", "output", "chunk", "hello", "exec", "entry", "entries", "read", "read_lines", "edit", "grep", "failure", "health", "process", "process_list", "process_read", "proxy", "tunnel", "presence", "retire")
    STARTED_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_FIELD_NUMBER: _ClassVar[int]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    HELLO_FIELD_NUMBER: _ClassVar[int]
    EXEC_FIELD_NUMBER: _ClassVar[int]
    ENTRY_FIELD_NUMBER: _ClassVar[int]
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    READ_FIELD_NUMBER: _ClassVar[int]
    READ_LINES_FIELD_NUMBER: _ClassVar[int]
    EDIT_FIELD_NUMBER: _ClassVar[int]
    GREP_FIELD_NUMBER: _ClassVar[int]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    HEALTH_FIELD_NUMBER: _ClassVar[int]
    PROCESS_FIELD_NUMBER: _ClassVar[int]
    PROCESS_LIST_FIELD_NUMBER: _ClassVar[int]
    PROCESS_READ_FIELD_NUMBER: _ClassVar[int]
    PROXY_FIELD_NUMBER: _ClassVar[int]
    TUNNEL_FIELD_NUMBER: _ClassVar[int]
    PRESENCE_FIELD_NUMBER: _ClassVar[int]
    RETIRE_FIELD_NUMBER: _ClassVar[int]
    started: Started
    output: Output
    chunk: Chunk
    hello: HelloReply
    exec: ExecReply
    entry: Entry
    entries: EntriesReply
    read: ReadReply
    read_lines: ReadLinesReply
    edit: EditReply
    grep: GrepReply
    failure: Failure
    health: HealthReply
    process: Process
    process_list: ProcessListReply
    process_read: ProcessReadReply
    proxy: ProxyReply
    tunnel: Tunnel
    presence: Presence
    retire: RetireReply
    def __init__(self, started: _Optional[_Union[Started, _Mapping]] = ..., output: _Optional[_Union[Output, _Mapping]] = ..., chunk: _Optional[_Union[Chunk, _Mapping]] = ..., hello: _Optional[_Union[HelloReply, _Mapping]] = ..., exec: _Optional[_Union[ExecReply, _Mapping]] = ..., entry: _Optional[_Union[Entry, _Mapping]] = ..., entries: _Optional[_Union[EntriesReply, _Mapping]] = ..., read: _Optional[_Union[ReadReply, _Mapping]] = ..., read_lines: _Optional[_Union[ReadLinesReply, _Mapping]] = ..., edit: _Optional[_Union[EditReply, _Mapping]] = ..., grep: _Optional[_Union[GrepReply, _Mapping]] = ..., failure: _Optional[_Union[Failure, _Mapping]] = ..., health: _Optional[_Union[HealthReply, _Mapping]] = ..., process: _Optional[_Union[Process, _Mapping]] = ..., process_list: _Optional[_Union[ProcessListReply, _Mapping]] = ..., process_read: _Optional[_Union[ProcessReadReply, _Mapping]] = ..., proxy: _Optional[_Union[ProxyReply, _Mapping]] = ..., tunnel: _Optional[_Union[Tunnel, _Mapping]] = ..., presence: _Optional[_Union[Presence, _Mapping]] = ..., retire: _Optional[_Union[RetireReply, _Mapping]] = ...) -> None: ...

class HelloRequest(_message.Message):
    __slots__ = ("protocol_version",)
    PROTOCOL_VERSION_FIELD_NUMBER: _ClassVar[int]
    protocol_version: int
    def __init__(self, protocol_version: _Optional[int] = ...) -> None: ...

class HelloReply(_message.Message):
    __slots__ = ("protocol_version", "posture", "build")
    PROTOCOL_VERSION_FIELD_NUMBER: _ClassVar[int]
    POSTURE_FIELD_NUMBER: _ClassVar[int]
    BUILD_FIELD_NUMBER: _ClassVar[int]
    protocol_version: int
    posture: Posture
    build: str
    def __init__(self, protocol_version: _Optional[int] = ..., posture: _Optional[_Union[Posture, _Mapping]] = ..., build: _Optional[str] = ...) -> None: ...

class HealthRequest(_message.Message):
    __slots__ = ("count_disk",)
    COUNT_DISK_FIELD_NUMBER: _ClassVar[int]
    count_disk: bool
    def __init__(self, count_disk: _Optional[bool] = ...) -> None: ...

class HealthReply(_message.Message):
    __slots__ = ("uptime_ms", "calls", "processes", "pids", "memory_bytes", "memory_kills", "pids_refused", "workspace", "tmp")
    UPTIME_MS_FIELD_NUMBER: _ClassVar[int]
    CALLS_FIELD_NUMBER: _ClassVar[int]
    PROCESSES_FIELD_NUMBER: _ClassVar[int]
    PIDS_FIELD_NUMBER: _ClassVar[int]
    MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    MEMORY_KILLS_FIELD_NUMBER: _ClassVar[int]
    PIDS_REFUSED_FIELD_NUMBER: _ClassVar[int]
    WORKSPACE_FIELD_NUMBER: _ClassVar[int]
    TMP_FIELD_NUMBER: _ClassVar[int]
    uptime_ms: int
    calls: int
    processes: int
    pids: int
    memory_bytes: int
    memory_kills: int
    pids_refused: int
    workspace: DiskCount
    tmp: DiskCount
    def __init__(self, uptime_ms: _Optional[int] = ..., calls: _Optional[int] = ..., processes: _Optional[int] = ..., pids: _Optional[int] = ..., memory_bytes: _Optional[int] = ..., memory_kills: _Optional[int] = ..., pids_refused: _Optional[int] = ..., workspace: _Optional[_Union[DiskCount, _Mapping]] = ..., tmp: _Optional[_Union[DiskCount, _Mapping]] = ...) -> None: ...

class DiskCount(_message.Message):
    __slots__ = ("size_bytes", "files", "partial")
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    FILES_FIELD_NUMBER: _ClassVar[int]
    PARTIAL_FIELD_NUMBER: _ClassVar[int]
    size_bytes: int
    files: int
    partial: bool
    def __init__(self, size_bytes: _Optional[int] = ..., files: _Optional[int] = ..., partial: _Optional[bool] = ...) -> None: ...

class Posture(_message.Message):
    __slots__ = ("tool_uid", "daemon_uid", "capabilities_bounding", "tool_capabilities_effective", "no_new_privileges", "seccomp_mode", "root_read_only", "memory_limit_bytes", "pids_limit", "network_interfaces", "kernel", "memory_swap_limit_bytes", "cpu_limit_millis", "namespaces", "mounts", "runtime", "tool_groups", "tool_oom_score_adj_min", "daemon_oom_score_adj", "socket_closed_to_tools", "tool_socket_families", "socket_programs_refused", "seccomp_filters_refused", "landlock_version", "extended_attributes_refused")
    TOOL_UID_FIELD_NUMBER: _ClassVar[int]
    DAEMON_UID_FIELD_NUMBER: _ClassVar[int]
    CAPABILITIES_BOUNDING_FIELD_NUMBER: _ClassVar[int]
    TOOL_CAPABILITIES_EFFECTIVE_FIELD_NUMBER: _ClassVar[int]
    NO_NEW_PRIVILEGES_FIELD_NUMBER: _ClassVar[int]
    SECCOMP_MODE_FIELD_NUMBER: _ClassVar[int]
    ROOT_READ_ONLY_FIELD_NUMBER: _ClassVar[int]
    MEMORY_LIMIT_BYTES_FIELD_NUMBER: _ClassVar[int]
    PIDS_LIMIT_FIELD_NUMBER: _ClassVar[int]
    NETWORK_INTERFACES_FIELD_NUMBER: _ClassVar[int]
    KERNEL_FIELD_NUMBER: _ClassVar[int]
    MEMORY_SWAP_LIMIT_BYTES_FIELD_NUMBER: _ClassVar[int]
    CPU_LIMIT_MILLIS_FIELD_NUMBER: _ClassVar[int]
    NAMESPACES_FIELD_NUMBER: _ClassVar[int]
    MOUNTS_FIELD_NUMBER: _ClassVar[int]
    RUNTIME_FIELD_NUMBER: _ClassVar[int]
    TOOL_GROUPS_FIELD_NUMBER: _ClassVar[int]
    TOOL_OOM_SCORE_ADJ_MIN_FIELD_NUMBER: _ClassVar[int]
    DAEMON_OOM_SCORE_ADJ_FIELD_NUMBER: _ClassVar[int]
    SOCKET_CLOSED_TO_TOOLS_FIELD_NUMBER: _ClassVar[int]
    TOOL_SOCKET_FAMILIES_FIELD_NUMBER: _ClassVar[int]
    SOCKET_PROGRAMS_REFUSED_FIELD_NUMBER: _ClassVar[int]
    SECCOMP_FILTERS_REFUSED_FIELD_NUMBER: _ClassVar[int]
    LANDLOCK_VERSION_FIELD_NUMBER: _ClassVar[int]
    EXTENDED_ATTRIBUTES_REFUSED_FIELD_NUMBER: _ClassVar[int]
    tool_uid: int
    daemon_uid: int
    capabilities_bounding: int
    tool_capabilities_effective: int
    no_new_privileges: bool
    seccomp_mode: int
    root_read_only: bool
    memory_limit_bytes: int
    pids_limit: int
    network_interfaces: _containers.RepeatedScalarFieldContainer[str]
    kernel: str
    memory_swap_limit_bytes: int
    cpu_limit_millis: int
    namespaces: _containers.RepeatedCompositeFieldContainer[Namespace]
    mounts: _containers.RepeatedCompositeFieldContainer[Mount]
    runtime: str
    tool_groups: _containers.RepeatedScalarFieldContainer[int]
    tool_oom_score_adj_min: int
    daemon_oom_score_adj: int
    socket_closed_to_tools: bool
    tool_socket_families: _containers.RepeatedScalarFieldContainer[int]
    socket_programs_refused: bool
    seccomp_filters_refused: bool
    landlock_version: int
    extended_attributes_refused: bool
    def __init__(self, tool_uid: _Optional[int] = ..., daemon_uid: _Optional[int] = ..., capabilities_bounding: _Optional[int] = ..., tool_capabilities_effective: _Optional[int] = ..., no_new_privileges: _Optional[bool] = ..., seccomp_mode: _Optional[int] = ..., root_read_only: _Optional[bool] = ..., memory_limit_bytes: _Optional[int] = ..., pids_limit: _Optional[int] = ..., network_interfaces: _Optional[_Iterable[str]] = ..., kernel: _Optional[str] = ..., memory_swap_limit_bytes: _Optional[int] = ..., cpu_limit_millis: _Optional[int] = ..., namespaces: _Optional[_Iterable[_Union[Namespace, _Mapping]]] = ..., mounts: _Optional[_Iterable[_Union[Mount, _Mapping]]] = ..., runtime: _Optional[str] = ..., tool_groups: _Optional[_Iterable[int]] = ..., tool_oom_score_adj_min: _Optional[int] = ..., daemon_oom_score_adj: _Optional[int] = ..., socket_closed_to_tools: _Optional[bool] = ..., tool_socket_families: _Optional[_Iterable[int]] = ..., socket_programs_refused: _Optional[bool] = ..., seccomp_filters_refused: _Optional[bool] = ..., landlock_version: _Optional[int] = ..., extended_attributes_refused: _Optional[bool] = ...) -> None: ...

class Namespace(_message.Message):
    __slots__ = ("kind", "inode")
    KIND_FIELD_NUMBER: _ClassVar[int]
    INODE_FIELD_NUMBER: _ClassVar[int]
    kind: str
    inode: int
    def __init__(self, kind: _Optional[str] = ..., inode: _Optional[int] = ...) -> None: ...

class Mount(_message.Message):
    __slots__ = ("path", "type", "read_only", "no_suid", "no_dev", "no_exec", "tool_writable")
    PATH_FIELD_NUMBER: _ClassVar[int]
    TYPE_FIELD_NUMBER: _ClassVar[int]
    READ_ONLY_FIELD_NUMBER: _ClassVar[int]
    NO_SUID_FIELD_NUMBER: _ClassVar[int]
    NO_DEV_FIELD_NUMBER: _ClassVar[int]
    NO_EXEC_FIELD_NUMBER: _ClassVar[int]
    TOOL_WRITABLE_FIELD_NUMBER: _ClassVar[int]
    path: str
    type: str
    read_only: bool
    no_suid: bool
    no_dev: bool
    no_exec: bool
    tool_writable: bool
    def __init__(self, path: _Optional[str] = ..., type: _Optional[str] = ..., read_only: _Optional[bool] = ..., no_suid: _Optional[bool] = ..., no_dev: _Optional[bool] = ..., no_exec: _Optional[bool] = ..., tool_writable: _Optional[bool] = ...) -> None: ...

class ExecRequest(_message.Message):
    __slots__ = ("argv", "env", "cwd", "timeout_ms", "stdin", "output_limit", "stream", "stream_limit_bytes", "file_rules")
    class EnvEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    ARGV_FIELD_NUMBER: _ClassVar[int]
    ENV_FIELD_NUMBER: _ClassVar[int]
    CWD_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    STDIN_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_LIMIT_FIELD_NUMBER: _ClassVar[int]
    STREAM_FIELD_NUMBER: _ClassVar[int]
    STREAM_LIMIT_BYTES_FIELD_NUMBER: _ClassVar[int]
    FILE_RULES_FIELD_NUMBER: _ClassVar[int]
    argv: _containers.RepeatedScalarFieldContainer[bytes]
    env: _containers.ScalarMap[str, str]
    cwd: str
    timeout_ms: int
    stdin: bool
    output_limit: OutputLimit
    stream: bool
    stream_limit_bytes: int
    file_rules: FileRules
    def __init__(self, argv: _Optional[_Iterable[bytes]] = ..., env: _Optional[_Mapping[str, str]] = ..., cwd: _Optional[str] = ..., timeout_ms: _Optional[int] = ..., stdin: _Optional[bool] = ..., output_limit: _Optional[_Union[OutputLimit, _Mapping]] = ..., stream: _Optional[bool] = ..., stream_limit_bytes: _Optional[int] = ..., file_rules: _Optional[_Union[FileRules, _Mapping]] = ...) -> None: ...

class FileRules(_message.Message):
    __slots__ = ("readable", "writable", "unreadable", "unwritable", "programs", "only_programs", "readable_files", "writable_files")
    READABLE_FIELD_NUMBER: _ClassVar[int]
    WRITABLE_FIELD_NUMBER: _ClassVar[int]
    UNREADABLE_FIELD_NUMBER: _ClassVar[int]
    UNWRITABLE_FIELD_NUMBER: _ClassVar[int]
    PROGRAMS_FIELD_NUMBER: _ClassVar[int]
    ONLY_PROGRAMS_FIELD_NUMBER: _ClassVar[int]
    READABLE_FILES_FIELD_NUMBER: _ClassVar[int]
    WRITABLE_FILES_FIELD_NUMBER: _ClassVar[int]
    readable: _containers.RepeatedScalarFieldContainer[str]
    writable: _containers.RepeatedScalarFieldContainer[str]
    unreadable: _containers.RepeatedScalarFieldContainer[str]
    unwritable: _containers.RepeatedScalarFieldContainer[str]
    programs: _containers.RepeatedScalarFieldContainer[str]
    only_programs: bool
    readable_files: _containers.RepeatedScalarFieldContainer[str]
    writable_files: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, readable: _Optional[_Iterable[str]] = ..., writable: _Optional[_Iterable[str]] = ..., unreadable: _Optional[_Iterable[str]] = ..., unwritable: _Optional[_Iterable[str]] = ..., programs: _Optional[_Iterable[str]] = ..., only_programs: _Optional[bool] = ..., readable_files: _Optional[_Iterable[str]] = ..., writable_files: _Optional[_Iterable[str]] = ...) -> None: ...

class OutputLimit(_message.Message):
    __slots__ = ("limit_chars", "head_chars", "tail_chars", "spill_path", "spill_limit_bytes", "spill_quota_bytes")
    LIMIT_CHARS_FIELD_NUMBER: _ClassVar[int]
    HEAD_CHARS_FIELD_NUMBER: _ClassVar[int]
    TAIL_CHARS_FIELD_NUMBER: _ClassVar[int]
    SPILL_PATH_FIELD_NUMBER: _ClassVar[int]
    SPILL_LIMIT_BYTES_FIELD_NUMBER: _ClassVar[int]
    SPILL_QUOTA_BYTES_FIELD_NUMBER: _ClassVar[int]
    limit_chars: int
    head_chars: int
    tail_chars: int
    spill_path: str
    spill_limit_bytes: int
    spill_quota_bytes: int
    def __init__(self, limit_chars: _Optional[int] = ..., head_chars: _Optional[int] = ..., tail_chars: _Optional[int] = ..., spill_path: _Optional[str] = ..., spill_limit_bytes: _Optional[int] = ..., spill_quota_bytes: _Optional[int] = ...) -> None: ...

class Started(_message.Message):
    __slots__ = ("pid",)
    PID_FIELD_NUMBER: _ClassVar[int]
    pid: int
    def __init__(self, pid: _Optional[int] = ...) -> None: ...

class Output(_message.Message):
    __slots__ = ("stream", "data")
    STREAM_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    stream: OutputStream
    data: bytes
    def __init__(self, stream: _Optional[_Union[OutputStream, str]] = ..., data: _Optional[bytes] = ...) -> None: ...

class ExecReply(_message.Message):
    __slots__ = ("outcome", "exit_code", "signal", "errno", "output", "tail", "evicted", "output_bytes", "duration_us", "pids_refused", "remaining", "host_disk", "start_us", "end_us")
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    EXIT_CODE_FIELD_NUMBER: _ClassVar[int]
    SIGNAL_FIELD_NUMBER: _ClassVar[int]
    ERRNO_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_FIELD_NUMBER: _ClassVar[int]
    TAIL_FIELD_NUMBER: _ClassVar[int]
    EVICTED_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_BYTES_FIELD_NUMBER: _ClassVar[int]
    DURATION_US_FIELD_NUMBER: _ClassVar[int]
    PIDS_REFUSED_FIELD_NUMBER: _ClassVar[int]
    REMAINING_FIELD_NUMBER: _ClassVar[int]
    HOST_DISK_FIELD_NUMBER: _ClassVar[int]
    START_US_FIELD_NUMBER: _ClassVar[int]
    END_US_FIELD_NUMBER: _ClassVar[int]
    outcome: Outcome
    exit_code: int
    signal: int
    errno: int
    output: _containers.RepeatedCompositeFieldContainer[Output]
    tail: _containers.RepeatedCompositeFieldContainer[Output]
    evicted: Evicted
    output_bytes: int
    duration_us: int
    pids_refused: int
    remaining: int
    host_disk: bool
    start_us: int
    end_us: int
    def __init__(self, outcome: _Optional[_Union[Outcome, str]] = ..., exit_code: _Optional[int] = ..., signal: _Optional[int] = ..., errno: _Optional[int] = ..., output: _Optional[_Iterable[_Union[Output, _Mapping]]] = ..., tail: _Optional[_Iterable[_Union[Output, _Mapping]]] = ..., evicted: _Optional[_Union[Evicted, _Mapping]] = ..., output_bytes: _Optional[int] = ..., duration_us: _Optional[int] = ..., pids_refused: _Optional[int] = ..., remaining: _Optional[int] = ..., host_disk: _Optional[bool] = ..., start_us: _Optional[int] = ..., end_us: _Optional[int] = ...) -> None: ...

class Evicted(_message.Message):
    __slots__ = ("path", "size_bytes", "lines", "sha256", "incomplete")
    PATH_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    LINES_FIELD_NUMBER: _ClassVar[int]
    SHA256_FIELD_NUMBER: _ClassVar[int]
    INCOMPLETE_FIELD_NUMBER: _ClassVar[int]
    path: str
    size_bytes: int
    lines: int
    sha256: str
    incomplete: bool
    def __init__(self, path: _Optional[str] = ..., size_bytes: _Optional[int] = ..., lines: _Optional[int] = ..., sha256: _Optional[str] = ..., incomplete: _Optional[bool] = ...) -> None: ...

class Entry(_message.Message):
    __slots__ = ("name", "type", "size_bytes", "mode", "modified_ns")
    NAME_FIELD_NUMBER: _ClassVar[int]
    TYPE_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    MODE_FIELD_NUMBER: _ClassVar[int]
    MODIFIED_NS_FIELD_NUMBER: _ClassVar[int]
    name: bytes
    type: EntryType
    size_bytes: int
    mode: int
    modified_ns: int
    def __init__(self, name: _Optional[bytes] = ..., type: _Optional[_Union[EntryType, str]] = ..., size_bytes: _Optional[int] = ..., mode: _Optional[int] = ..., modified_ns: _Optional[int] = ...) -> None: ...

class StatRequest(_message.Message):
    __slots__ = ("path",)
    PATH_FIELD_NUMBER: _ClassVar[int]
    path: str
    def __init__(self, path: _Optional[str] = ...) -> None: ...

class ListRequest(_message.Message):
    __slots__ = ("path", "offset", "limit")
    PATH_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    path: str
    offset: int
    limit: int
    def __init__(self, path: _Optional[str] = ..., offset: _Optional[int] = ..., limit: _Optional[int] = ...) -> None: ...

class EntriesReply(_message.Message):
    __slots__ = ("entries", "total", "more", "unsearched")
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    TOTAL_FIELD_NUMBER: _ClassVar[int]
    MORE_FIELD_NUMBER: _ClassVar[int]
    UNSEARCHED_FIELD_NUMBER: _ClassVar[int]
    entries: _containers.RepeatedCompositeFieldContainer[Entry]
    total: int
    more: bool
    unsearched: int
    def __init__(self, entries: _Optional[_Iterable[_Union[Entry, _Mapping]]] = ..., total: _Optional[int] = ..., more: _Optional[bool] = ..., unsearched: _Optional[int] = ...) -> None: ...

class ReadRequest(_message.Message):
    __slots__ = ("path", "offset", "length")
    PATH_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    LENGTH_FIELD_NUMBER: _ClassVar[int]
    path: str
    offset: int
    length: int
    def __init__(self, path: _Optional[str] = ..., offset: _Optional[int] = ..., length: _Optional[int] = ...) -> None: ...

class Chunk(_message.Message):
    __slots__ = ("data",)
    DATA_FIELD_NUMBER: _ClassVar[int]
    data: bytes
    def __init__(self, data: _Optional[bytes] = ...) -> None: ...

class ReadReply(_message.Message):
    __slots__ = ("size_bytes", "data")
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    size_bytes: int
    data: bytes
    def __init__(self, size_bytes: _Optional[int] = ..., data: _Optional[bytes] = ...) -> None: ...

class ReadLinesRequest(_message.Message):
    __slots__ = ("path", "offset", "limit", "limit_bytes")
    PATH_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    LIMIT_BYTES_FIELD_NUMBER: _ClassVar[int]
    path: str
    offset: int
    limit: int
    limit_bytes: int
    def __init__(self, path: _Optional[str] = ..., offset: _Optional[int] = ..., limit: _Optional[int] = ..., limit_bytes: _Optional[int] = ...) -> None: ...

class ReadLinesReply(_message.Message):
    __slots__ = ("data", "lines", "more", "binary", "size_bytes", "next_byte", "cut")
    DATA_FIELD_NUMBER: _ClassVar[int]
    LINES_FIELD_NUMBER: _ClassVar[int]
    MORE_FIELD_NUMBER: _ClassVar[int]
    BINARY_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    NEXT_BYTE_FIELD_NUMBER: _ClassVar[int]
    CUT_FIELD_NUMBER: _ClassVar[int]
    data: bytes
    lines: int
    more: bool
    binary: bool
    size_bytes: int
    next_byte: int
    cut: bool
    def __init__(self, data: _Optional[bytes] = ..., lines: _Optional[int] = ..., more: _Optional[bool] = ..., binary: _Optional[bool] = ..., size_bytes: _Optional[int] = ..., next_byte: _Optional[int] = ..., cut: _Optional[bool] = ...) -> None: ...

class WriteRequest(_message.Message):
    __slots__ = ("path", "data", "inline")
    PATH_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    INLINE_FIELD_NUMBER: _ClassVar[int]
    path: str
    data: bytes
    inline: bool
    def __init__(self, path: _Optional[str] = ..., data: _Optional[bytes] = ..., inline: _Optional[bool] = ...) -> None: ...

class EditRequest(_message.Message):
    __slots__ = ("path", "old_text", "new_text", "replace_all")
    PATH_FIELD_NUMBER: _ClassVar[int]
    OLD_TEXT_FIELD_NUMBER: _ClassVar[int]
    NEW_TEXT_FIELD_NUMBER: _ClassVar[int]
    REPLACE_ALL_FIELD_NUMBER: _ClassVar[int]
    path: str
    old_text: bytes
    new_text: bytes
    replace_all: bool
    def __init__(self, path: _Optional[str] = ..., old_text: _Optional[bytes] = ..., new_text: _Optional[bytes] = ..., replace_all: _Optional[bool] = ...) -> None: ...

class EditReply(_message.Message):
    __slots__ = ("replaced", "left")
    REPLACED_FIELD_NUMBER: _ClassVar[int]
    LEFT_FIELD_NUMBER: _ClassVar[int]
    replaced: int
    left: int
    def __init__(self, replaced: _Optional[int] = ..., left: _Optional[int] = ...) -> None: ...

class GlobRequest(_message.Message):
    __slots__ = ("path", "pattern", "offset", "limit")
    PATH_FIELD_NUMBER: _ClassVar[int]
    PATTERN_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    path: str
    pattern: str
    offset: int
    limit: int
    def __init__(self, path: _Optional[str] = ..., pattern: _Optional[str] = ..., offset: _Optional[int] = ..., limit: _Optional[int] = ...) -> None: ...

class GrepRequest(_message.Message):
    __slots__ = ("path", "pattern", "include", "offset", "limit", "timeout_ms")
    PATH_FIELD_NUMBER: _ClassVar[int]
    PATTERN_FIELD_NUMBER: _ClassVar[int]
    INCLUDE_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    path: str
    pattern: str
    include: str
    offset: int
    limit: int
    timeout_ms: int
    def __init__(self, path: _Optional[str] = ..., pattern: _Optional[str] = ..., include: _Optional[str] = ..., offset: _Optional[int] = ..., limit: _Optional[int] = ..., timeout_ms: _Optional[int] = ...) -> None: ...

class GrepMatch(_message.Message):
    __slots__ = ("path", "line", "text")
    PATH_FIELD_NUMBER: _ClassVar[int]
    LINE_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    path: bytes
    line: int
    text: bytes
    def __init__(self, path: _Optional[bytes] = ..., line: _Optional[int] = ..., text: _Optional[bytes] = ...) -> None: ...

class GrepReply(_message.Message):
    __slots__ = ("matches", "more", "timed_out", "binary_files", "hard_linked_files", "unsearched")
    MATCHES_FIELD_NUMBER: _ClassVar[int]
    MORE_FIELD_NUMBER: _ClassVar[int]
    TIMED_OUT_FIELD_NUMBER: _ClassVar[int]
    BINARY_FILES_FIELD_NUMBER: _ClassVar[int]
    HARD_LINKED_FILES_FIELD_NUMBER: _ClassVar[int]
    UNSEARCHED_FIELD_NUMBER: _ClassVar[int]
    matches: _containers.RepeatedCompositeFieldContainer[GrepMatch]
    more: bool
    timed_out: bool
    binary_files: int
    hard_linked_files: int
    unsearched: int
    def __init__(self, matches: _Optional[_Iterable[_Union[GrepMatch, _Mapping]]] = ..., more: _Optional[bool] = ..., timed_out: _Optional[bool] = ..., binary_files: _Optional[int] = ..., hard_linked_files: _Optional[int] = ..., unsearched: _Optional[int] = ...) -> None: ...

class MkdirRequest(_message.Message):
    __slots__ = ("path",)
    PATH_FIELD_NUMBER: _ClassVar[int]
    path: str
    def __init__(self, path: _Optional[str] = ...) -> None: ...

class RemoveRequest(_message.Message):
    __slots__ = ("path", "recursive")
    PATH_FIELD_NUMBER: _ClassVar[int]
    RECURSIVE_FIELD_NUMBER: _ClassVar[int]
    path: str
    recursive: bool
    def __init__(self, path: _Optional[str] = ..., recursive: _Optional[bool] = ...) -> None: ...

class RenameRequest(_message.Message):
    __slots__ = ("path", "new_path")
    PATH_FIELD_NUMBER: _ClassVar[int]
    NEW_PATH_FIELD_NUMBER: _ClassVar[int]
    path: str
    new_path: str
    def __init__(self, path: _Optional[str] = ..., new_path: _Optional[str] = ...) -> None: ...

class Failure(_message.Message):
    __slots__ = ("kind", "message", "errno", "taken_bytes")
    KIND_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    ERRNO_FIELD_NUMBER: _ClassVar[int]
    TAKEN_BYTES_FIELD_NUMBER: _ClassVar[int]
    kind: FailureKind
    message: str
    errno: int
    taken_bytes: int
    def __init__(self, kind: _Optional[_Union[FailureKind, str]] = ..., message: _Optional[str] = ..., errno: _Optional[int] = ..., taken_bytes: _Optional[int] = ...) -> None: ...

class ProcessStartRequest(_message.Message):
    __slots__ = ("id", "argv", "env", "cwd", "terminal", "size", "stdin", "merge_stderr", "ring_bytes", "output_directory", "file_limit_bytes", "timeout_ms", "file_rules")
    class EnvEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    ID_FIELD_NUMBER: _ClassVar[int]
    ARGV_FIELD_NUMBER: _ClassVar[int]
    ENV_FIELD_NUMBER: _ClassVar[int]
    CWD_FIELD_NUMBER: _ClassVar[int]
    TERMINAL_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    STDIN_FIELD_NUMBER: _ClassVar[int]
    MERGE_STDERR_FIELD_NUMBER: _ClassVar[int]
    RING_BYTES_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_DIRECTORY_FIELD_NUMBER: _ClassVar[int]
    FILE_LIMIT_BYTES_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    FILE_RULES_FIELD_NUMBER: _ClassVar[int]
    id: str
    argv: _containers.RepeatedScalarFieldContainer[bytes]
    env: _containers.ScalarMap[str, str]
    cwd: str
    terminal: bool
    size: WindowSize
    stdin: bool
    merge_stderr: bool
    ring_bytes: int
    output_directory: str
    file_limit_bytes: int
    timeout_ms: int
    file_rules: FileRules
    def __init__(self, id: _Optional[str] = ..., argv: _Optional[_Iterable[bytes]] = ..., env: _Optional[_Mapping[str, str]] = ..., cwd: _Optional[str] = ..., terminal: _Optional[bool] = ..., size: _Optional[_Union[WindowSize, _Mapping]] = ..., stdin: _Optional[bool] = ..., merge_stderr: _Optional[bool] = ..., ring_bytes: _Optional[int] = ..., output_directory: _Optional[str] = ..., file_limit_bytes: _Optional[int] = ..., timeout_ms: _Optional[int] = ..., file_rules: _Optional[_Union[FileRules, _Mapping]] = ...) -> None: ...

class WindowSize(_message.Message):
    __slots__ = ("rows", "columns")
    ROWS_FIELD_NUMBER: _ClassVar[int]
    COLUMNS_FIELD_NUMBER: _ClassVar[int]
    rows: int
    columns: int
    def __init__(self, rows: _Optional[int] = ..., columns: _Optional[int] = ...) -> None: ...

class Process(_message.Message):
    __slots__ = ("id", "pid", "argv", "running", "outcome", "exit_code", "signal", "started_ns", "duration_us", "terminal", "size", "stdin_open", "stdout", "stderr", "tree", "stdin_taken_bytes")
    ID_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    ARGV_FIELD_NUMBER: _ClassVar[int]
    RUNNING_FIELD_NUMBER: _ClassVar[int]
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    EXIT_CODE_FIELD_NUMBER: _ClassVar[int]
    SIGNAL_FIELD_NUMBER: _ClassVar[int]
    STARTED_NS_FIELD_NUMBER: _ClassVar[int]
    DURATION_US_FIELD_NUMBER: _ClassVar[int]
    TERMINAL_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    STDIN_OPEN_FIELD_NUMBER: _ClassVar[int]
    STDOUT_FIELD_NUMBER: _ClassVar[int]
    STDERR_FIELD_NUMBER: _ClassVar[int]
    TREE_FIELD_NUMBER: _ClassVar[int]
    STDIN_TAKEN_BYTES_FIELD_NUMBER: _ClassVar[int]
    id: str
    pid: int
    argv: _containers.RepeatedScalarFieldContainer[bytes]
    running: bool
    outcome: Outcome
    exit_code: int
    signal: int
    started_ns: int
    duration_us: int
    terminal: bool
    size: WindowSize
    stdin_open: bool
    stdout: ProcessOutput
    stderr: ProcessOutput
    tree: int
    stdin_taken_bytes: int
    def __init__(self, id: _Optional[str] = ..., pid: _Optional[int] = ..., argv: _Optional[_Iterable[bytes]] = ..., running: _Optional[bool] = ..., outcome: _Optional[_Union[Outcome, str]] = ..., exit_code: _Optional[int] = ..., signal: _Optional[int] = ..., started_ns: _Optional[int] = ..., duration_us: _Optional[int] = ..., terminal: _Optional[bool] = ..., size: _Optional[_Union[WindowSize, _Mapping]] = ..., stdin_open: _Optional[bool] = ..., stdout: _Optional[_Union[ProcessOutput, _Mapping]] = ..., stderr: _Optional[_Union[ProcessOutput, _Mapping]] = ..., tree: _Optional[int] = ..., stdin_taken_bytes: _Optional[int] = ...) -> None: ...

class ProcessOutput(_message.Message):
    __slots__ = ("size_bytes", "ring_offset", "path", "path_bytes", "closed")
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    RING_OFFSET_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    PATH_BYTES_FIELD_NUMBER: _ClassVar[int]
    CLOSED_FIELD_NUMBER: _ClassVar[int]
    size_bytes: int
    ring_offset: int
    path: str
    path_bytes: int
    closed: bool
    def __init__(self, size_bytes: _Optional[int] = ..., ring_offset: _Optional[int] = ..., path: _Optional[str] = ..., path_bytes: _Optional[int] = ..., closed: _Optional[bool] = ...) -> None: ...

class ProcessListRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ProcessListReply(_message.Message):
    __slots__ = ("processes", "strays")
    PROCESSES_FIELD_NUMBER: _ClassVar[int]
    STRAYS_FIELD_NUMBER: _ClassVar[int]
    processes: _containers.RepeatedCompositeFieldContainer[Process]
    strays: int
    def __init__(self, processes: _Optional[_Iterable[_Union[Process, _Mapping]]] = ..., strays: _Optional[int] = ...) -> None: ...

class ProcessReadRequest(_message.Message):
    __slots__ = ("id", "stream", "offset", "limit_bytes", "wait_ms")
    ID_FIELD_NUMBER: _ClassVar[int]
    STREAM_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    LIMIT_BYTES_FIELD_NUMBER: _ClassVar[int]
    WAIT_MS_FIELD_NUMBER: _ClassVar[int]
    id: str
    stream: OutputStream
    offset: int
    limit_bytes: int
    wait_ms: int
    def __init__(self, id: _Optional[str] = ..., stream: _Optional[_Union[OutputStream, str]] = ..., offset: _Optional[int] = ..., limit_bytes: _Optional[int] = ..., wait_ms: _Optional[int] = ...) -> None: ...

class ProcessReadReply(_message.Message):
    __slots__ = ("data", "offset", "end", "size_bytes")
    DATA_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    data: bytes
    offset: int
    end: bool
    size_bytes: int
    def __init__(self, data: _Optional[bytes] = ..., offset: _Optional[int] = ..., end: _Optional[bool] = ..., size_bytes: _Optional[int] = ...) -> None: ...

class ProcessWriteRequest(_message.Message):
    __slots__ = ("id", "data", "end", "wait_ms", "offset", "request_id")
    ID_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    WAIT_MS_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    id: str
    data: bytes
    end: bool
    wait_ms: int
    offset: int
    request_id: str
    def __init__(self, id: _Optional[str] = ..., data: _Optional[bytes] = ..., end: _Optional[bool] = ..., wait_ms: _Optional[int] = ..., offset: _Optional[int] = ..., request_id: _Optional[str] = ...) -> None: ...

class ProcessResizeRequest(_message.Message):
    __slots__ = ("id", "size")
    ID_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    id: str
    size: WindowSize
    def __init__(self, id: _Optional[str] = ..., size: _Optional[_Union[WindowSize, _Mapping]] = ...) -> None: ...

class ProcessSignalRequest(_message.Message):
    __slots__ = ("id", "signal", "tree")
    ID_FIELD_NUMBER: _ClassVar[int]
    SIGNAL_FIELD_NUMBER: _ClassVar[int]
    TREE_FIELD_NUMBER: _ClassVar[int]
    id: str
    signal: int
    tree: bool
    def __init__(self, id: _Optional[str] = ..., signal: _Optional[int] = ..., tree: _Optional[bool] = ...) -> None: ...

class ProcessWaitRequest(_message.Message):
    __slots__ = ("id", "wait_ms")
    ID_FIELD_NUMBER: _ClassVar[int]
    WAIT_MS_FIELD_NUMBER: _ClassVar[int]
    id: str
    wait_ms: int
    def __init__(self, id: _Optional[str] = ..., wait_ms: _Optional[int] = ...) -> None: ...

class ProxyRequest(_message.Message):
    __slots__ = ("open",)
    OPEN_FIELD_NUMBER: _ClassVar[int]
    open: bool
    def __init__(self, open: _Optional[bool] = ...) -> None: ...

class ProxyReply(_message.Message):
    __slots__ = ("port",)
    PORT_FIELD_NUMBER: _ClassVar[int]
    port: int
    def __init__(self, port: _Optional[int] = ...) -> None: ...

class ProxyAcceptRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class PortConnectRequest(_message.Message):
    __slots__ = ("port",)
    PORT_FIELD_NUMBER: _ClassVar[int]
    port: int
    def __init__(self, port: _Optional[int] = ...) -> None: ...

class Tunnel(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ProcessRemoveRequest(_message.Message):
    __slots__ = ("id",)
    ID_FIELD_NUMBER: _ClassVar[int]
    id: str
    def __init__(self, id: _Optional[str] = ...) -> None: ...

class AttachRequest(_message.Message):
    __slots__ = ("process",)
    PROCESS_FIELD_NUMBER: _ClassVar[int]
    process: str
    def __init__(self, process: _Optional[str] = ...) -> None: ...

class Presence(_message.Message):
    __slots__ = ("others", "others_in_use", "retired")
    OTHERS_FIELD_NUMBER: _ClassVar[int]
    OTHERS_IN_USE_FIELD_NUMBER: _ClassVar[int]
    RETIRED_FIELD_NUMBER: _ClassVar[int]
    others: int
    others_in_use: bool
    retired: bool
    def __init__(self, others: _Optional[int] = ..., others_in_use: _Optional[bool] = ..., retired: _Optional[bool] = ...) -> None: ...

class RetireRequest(_message.Message):
    __slots__ = ("busy", "attached")
    BUSY_FIELD_NUMBER: _ClassVar[int]
    ATTACHED_FIELD_NUMBER: _ClassVar[int]
    busy: bool
    attached: bool
    def __init__(self, busy: _Optional[bool] = ..., attached: _Optional[bool] = ...) -> None: ...

class RetireReply(_message.Message):
    __slots__ = ("refused",)
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    refused: Refusal
    def __init__(self, refused: _Optional[_Union[Refusal, str]] = ...) -> None: ...

class ArchiveRequest(_message.Message):
    __slots__ = ("fill",)
    FILL_FIELD_NUMBER: _ClassVar[int]
    fill: bool
    def __init__(self, fill: _Optional[bool] = ...) -> None: ...
