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

class Request(_message.Message):
    __slots__ = ("hello", "exec", "stat", "list", "read", "read_lines", "write", "edit", "glob", "grep", "mkdir", "remove", "rename")
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
    def __init__(self, hello: _Optional[_Union[HelloRequest, _Mapping]] = ..., exec: _Optional[_Union[ExecRequest, _Mapping]] = ..., stat: _Optional[_Union[StatRequest, _Mapping]] = ..., list: _Optional[_Union[ListRequest, _Mapping]] = ..., read: _Optional[_Union[ReadRequest, _Mapping]] = ..., read_lines: _Optional[_Union[ReadLinesRequest, _Mapping]] = ..., write: _Optional[_Union[WriteRequest, _Mapping]] = ..., edit: _Optional[_Union[EditRequest, _Mapping]] = ..., glob: _Optional[_Union[GlobRequest, _Mapping]] = ..., grep: _Optional[_Union[GrepRequest, _Mapping]] = ..., mkdir: _Optional[_Union[MkdirRequest, _Mapping]] = ..., remove: _Optional[_Union[RemoveRequest, _Mapping]] = ..., rename: _Optional[_Union[RenameRequest, _Mapping]] = ...) -> None: ...

class Input(_message.Message):
    __slots__ = ("data", "end")
    DATA_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    data: bytes
    end: bool
    def __init__(self, data: _Optional[bytes] = ..., end: _Optional[bool] = ...) -> None: ...

class Reply(_message.Message):
    __slots__ = ("started", "output", "chunk", "hello", "exec", "entry", "entries", "read", "read_lines", "edit", "grep", "failure")
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
    def __init__(self, started: _Optional[_Union[Started, _Mapping]] = ..., output: _Optional[_Union[Output, _Mapping]] = ..., chunk: _Optional[_Union[Chunk, _Mapping]] = ..., hello: _Optional[_Union[HelloReply, _Mapping]] = ..., exec: _Optional[_Union[ExecReply, _Mapping]] = ..., entry: _Optional[_Union[Entry, _Mapping]] = ..., entries: _Optional[_Union[EntriesReply, _Mapping]] = ..., read: _Optional[_Union[ReadReply, _Mapping]] = ..., read_lines: _Optional[_Union[ReadLinesReply, _Mapping]] = ..., edit: _Optional[_Union[EditReply, _Mapping]] = ..., grep: _Optional[_Union[GrepReply, _Mapping]] = ..., failure: _Optional[_Union[Failure, _Mapping]] = ...) -> None: ...

class HelloRequest(_message.Message):
    __slots__ = ("protocol_version",)
    PROTOCOL_VERSION_FIELD_NUMBER: _ClassVar[int]
    protocol_version: int
    def __init__(self, protocol_version: _Optional[int] = ...) -> None: ...

class HelloReply(_message.Message):
    __slots__ = ("protocol_version", "posture")
    PROTOCOL_VERSION_FIELD_NUMBER: _ClassVar[int]
    POSTURE_FIELD_NUMBER: _ClassVar[int]
    protocol_version: int
    posture: Posture
    def __init__(self, protocol_version: _Optional[int] = ..., posture: _Optional[_Union[Posture, _Mapping]] = ...) -> None: ...

class Posture(_message.Message):
    __slots__ = ("tool_uid", "daemon_uid", "capabilities_bounding", "tool_capabilities_effective", "no_new_privileges", "seccomp_mode", "root_read_only", "memory_limit_bytes", "pids_limit", "network_interfaces", "kernel", "memory_swap_limit_bytes", "cpu_limit_millis")
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
    def __init__(self, tool_uid: _Optional[int] = ..., daemon_uid: _Optional[int] = ..., capabilities_bounding: _Optional[int] = ..., tool_capabilities_effective: _Optional[int] = ..., no_new_privileges: _Optional[bool] = ..., seccomp_mode: _Optional[int] = ..., root_read_only: _Optional[bool] = ..., memory_limit_bytes: _Optional[int] = ..., pids_limit: _Optional[int] = ..., network_interfaces: _Optional[_Iterable[str]] = ..., kernel: _Optional[str] = ..., memory_swap_limit_bytes: _Optional[int] = ..., cpu_limit_millis: _Optional[int] = ...) -> None: ...

class ExecRequest(_message.Message):
    __slots__ = ("argv", "env", "cwd", "timeout_ms", "stdin", "output_limit", "stream")
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
    argv: _containers.RepeatedScalarFieldContainer[bytes]
    env: _containers.ScalarMap[str, str]
    cwd: str
    timeout_ms: int
    stdin: bool
    output_limit: OutputLimit
    stream: bool
    def __init__(self, argv: _Optional[_Iterable[bytes]] = ..., env: _Optional[_Mapping[str, str]] = ..., cwd: _Optional[str] = ..., timeout_ms: _Optional[int] = ..., stdin: _Optional[bool] = ..., output_limit: _Optional[_Union[OutputLimit, _Mapping]] = ..., stream: _Optional[bool] = ...) -> None: ...

class OutputLimit(_message.Message):
    __slots__ = ("limit_chars", "head_chars", "tail_chars", "spill_path", "spill_limit_bytes")
    LIMIT_CHARS_FIELD_NUMBER: _ClassVar[int]
    HEAD_CHARS_FIELD_NUMBER: _ClassVar[int]
    TAIL_CHARS_FIELD_NUMBER: _ClassVar[int]
    SPILL_PATH_FIELD_NUMBER: _ClassVar[int]
    SPILL_LIMIT_BYTES_FIELD_NUMBER: _ClassVar[int]
    limit_chars: int
    head_chars: int
    tail_chars: int
    spill_path: str
    spill_limit_bytes: int
    def __init__(self, limit_chars: _Optional[int] = ..., head_chars: _Optional[int] = ..., tail_chars: _Optional[int] = ..., spill_path: _Optional[str] = ..., spill_limit_bytes: _Optional[int] = ...) -> None: ...

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
    __slots__ = ("outcome", "exit_code", "signal", "errno", "output", "tail", "evicted", "output_bytes", "duration_us")
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    EXIT_CODE_FIELD_NUMBER: _ClassVar[int]
    SIGNAL_FIELD_NUMBER: _ClassVar[int]
    ERRNO_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_FIELD_NUMBER: _ClassVar[int]
    TAIL_FIELD_NUMBER: _ClassVar[int]
    EVICTED_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_BYTES_FIELD_NUMBER: _ClassVar[int]
    DURATION_US_FIELD_NUMBER: _ClassVar[int]
    outcome: Outcome
    exit_code: int
    signal: int
    errno: int
    output: _containers.RepeatedCompositeFieldContainer[Output]
    tail: _containers.RepeatedCompositeFieldContainer[Output]
    evicted: Evicted
    output_bytes: int
    duration_us: int
    def __init__(self, outcome: _Optional[_Union[Outcome, str]] = ..., exit_code: _Optional[int] = ..., signal: _Optional[int] = ..., errno: _Optional[int] = ..., output: _Optional[_Iterable[_Union[Output, _Mapping]]] = ..., tail: _Optional[_Iterable[_Union[Output, _Mapping]]] = ..., evicted: _Optional[_Union[Evicted, _Mapping]] = ..., output_bytes: _Optional[int] = ..., duration_us: _Optional[int] = ...) -> None: ...

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
    __slots__ = ("entries", "total", "more")
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    TOTAL_FIELD_NUMBER: _ClassVar[int]
    MORE_FIELD_NUMBER: _ClassVar[int]
    entries: _containers.RepeatedCompositeFieldContainer[Entry]
    total: int
    more: bool
    def __init__(self, entries: _Optional[_Iterable[_Union[Entry, _Mapping]]] = ..., total: _Optional[int] = ..., more: _Optional[bool] = ...) -> None: ...

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
    __slots__ = ("matches", "more", "timed_out", "binary_files")
    MATCHES_FIELD_NUMBER: _ClassVar[int]
    MORE_FIELD_NUMBER: _ClassVar[int]
    TIMED_OUT_FIELD_NUMBER: _ClassVar[int]
    BINARY_FILES_FIELD_NUMBER: _ClassVar[int]
    matches: _containers.RepeatedCompositeFieldContainer[GrepMatch]
    more: bool
    timed_out: bool
    binary_files: int
    def __init__(self, matches: _Optional[_Iterable[_Union[GrepMatch, _Mapping]]] = ..., more: _Optional[bool] = ..., timed_out: _Optional[bool] = ..., binary_files: _Optional[int] = ...) -> None: ...

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
    __slots__ = ("kind", "message", "errno")
    KIND_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    ERRNO_FIELD_NUMBER: _ClassVar[int]
    kind: FailureKind
    message: str
    errno: int
    def __init__(self, kind: _Optional[_Union[FailureKind, str]] = ..., message: _Optional[str] = ..., errno: _Optional[int] = ...) -> None: ...
