import datetime

from google.protobuf import timestamp_pb2 as _timestamp_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Program(_message.Message):
    __slots__ = ("thread", "argv", "cwd", "env")
    class EnvEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    THREAD_FIELD_NUMBER: _ClassVar[int]
    ARGV_FIELD_NUMBER: _ClassVar[int]
    CWD_FIELD_NUMBER: _ClassVar[int]
    ENV_FIELD_NUMBER: _ClassVar[int]
    thread: str
    argv: _containers.RepeatedScalarFieldContainer[str]
    cwd: str
    env: _containers.ScalarMap[str, str]
    def __init__(self, thread: _Optional[str] = ..., argv: _Optional[_Iterable[str]] = ..., cwd: _Optional[str] = ..., env: _Optional[_Mapping[str, str]] = ...) -> None: ...

class RunProgramRequest(_message.Message):
    __slots__ = ("run", "stdin", "end")
    RUN_FIELD_NUMBER: _ClassVar[int]
    STDIN_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    run: RunProgram
    stdin: bytes
    end: bool
    def __init__(self, run: _Optional[_Union[RunProgram, _Mapping]] = ..., stdin: _Optional[bytes] = ..., end: _Optional[bool] = ...) -> None: ...

class RunProgram(_message.Message):
    __slots__ = ("program", "timeout_ms", "stdin", "output_limit_bytes", "request_id")
    PROGRAM_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    STDIN_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_LIMIT_BYTES_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    program: Program
    timeout_ms: int
    stdin: bool
    output_limit_bytes: int
    request_id: str
    def __init__(self, program: _Optional[_Union[Program, _Mapping]] = ..., timeout_ms: _Optional[int] = ..., stdin: _Optional[bool] = ..., output_limit_bytes: _Optional[int] = ..., request_id: _Optional[str] = ...) -> None: ...

class RunProgramResponse(_message.Message):
    __slots__ = ("stdout", "stderr", "end")
    STDOUT_FIELD_NUMBER: _ClassVar[int]
    STDERR_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    stdout: bytes
    stderr: bytes
    end: ProgramEnd
    def __init__(self, stdout: _Optional[bytes] = ..., stderr: _Optional[bytes] = ..., end: _Optional[_Union[ProgramEnd, _Mapping]] = ...) -> None: ...

class ProgramEnd(_message.Message):
    __slots__ = ("call_id", "outcome", "exit_code", "signal", "errno", "message", "output_bytes", "duration_ms", "repeated")
    CALL_ID_FIELD_NUMBER: _ClassVar[int]
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    EXIT_CODE_FIELD_NUMBER: _ClassVar[int]
    SIGNAL_FIELD_NUMBER: _ClassVar[int]
    ERRNO_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_BYTES_FIELD_NUMBER: _ClassVar[int]
    DURATION_MS_FIELD_NUMBER: _ClassVar[int]
    REPEATED_FIELD_NUMBER: _ClassVar[int]
    call_id: str
    outcome: str
    exit_code: int
    signal: int
    errno: int
    message: str
    output_bytes: int
    duration_ms: float
    repeated: bool
    def __init__(self, call_id: _Optional[str] = ..., outcome: _Optional[str] = ..., exit_code: _Optional[int] = ..., signal: _Optional[int] = ..., errno: _Optional[int] = ..., message: _Optional[str] = ..., output_bytes: _Optional[int] = ..., duration_ms: _Optional[float] = ..., repeated: _Optional[bool] = ...) -> None: ...

class WindowSize(_message.Message):
    __slots__ = ("rows", "columns")
    ROWS_FIELD_NUMBER: _ClassVar[int]
    COLUMNS_FIELD_NUMBER: _ClassVar[int]
    rows: int
    columns: int
    def __init__(self, rows: _Optional[int] = ..., columns: _Optional[int] = ...) -> None: ...

class Process(_message.Message):
    __slots__ = ("id", "argv", "running", "outcome", "exit_code", "signal", "started_at", "duration_ms", "terminal", "size", "stdin_open", "stdout_size_bytes", "stderr_size_bytes", "stdout_path", "stderr_path", "tree", "stdout_path_bytes", "stderr_path_bytes", "stdout_closed", "stderr_closed", "stdin_taken_bytes")
    ID_FIELD_NUMBER: _ClassVar[int]
    ARGV_FIELD_NUMBER: _ClassVar[int]
    RUNNING_FIELD_NUMBER: _ClassVar[int]
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    EXIT_CODE_FIELD_NUMBER: _ClassVar[int]
    SIGNAL_FIELD_NUMBER: _ClassVar[int]
    STARTED_AT_FIELD_NUMBER: _ClassVar[int]
    DURATION_MS_FIELD_NUMBER: _ClassVar[int]
    TERMINAL_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    STDIN_OPEN_FIELD_NUMBER: _ClassVar[int]
    STDOUT_SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    STDERR_SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    STDOUT_PATH_FIELD_NUMBER: _ClassVar[int]
    STDERR_PATH_FIELD_NUMBER: _ClassVar[int]
    TREE_FIELD_NUMBER: _ClassVar[int]
    STDOUT_PATH_BYTES_FIELD_NUMBER: _ClassVar[int]
    STDERR_PATH_BYTES_FIELD_NUMBER: _ClassVar[int]
    STDOUT_CLOSED_FIELD_NUMBER: _ClassVar[int]
    STDERR_CLOSED_FIELD_NUMBER: _ClassVar[int]
    STDIN_TAKEN_BYTES_FIELD_NUMBER: _ClassVar[int]
    id: str
    argv: _containers.RepeatedScalarFieldContainer[str]
    running: bool
    outcome: str
    exit_code: int
    signal: int
    started_at: _timestamp_pb2.Timestamp
    duration_ms: float
    terminal: bool
    size: WindowSize
    stdin_open: bool
    stdout_size_bytes: int
    stderr_size_bytes: int
    stdout_path: str
    stderr_path: str
    tree: int
    stdout_path_bytes: int
    stderr_path_bytes: int
    stdout_closed: bool
    stderr_closed: bool
    stdin_taken_bytes: int
    def __init__(self, id: _Optional[str] = ..., argv: _Optional[_Iterable[str]] = ..., running: _Optional[bool] = ..., outcome: _Optional[str] = ..., exit_code: _Optional[int] = ..., signal: _Optional[int] = ..., started_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., duration_ms: _Optional[float] = ..., terminal: _Optional[bool] = ..., size: _Optional[_Union[WindowSize, _Mapping]] = ..., stdin_open: _Optional[bool] = ..., stdout_size_bytes: _Optional[int] = ..., stderr_size_bytes: _Optional[int] = ..., stdout_path: _Optional[str] = ..., stderr_path: _Optional[str] = ..., tree: _Optional[int] = ..., stdout_path_bytes: _Optional[int] = ..., stderr_path_bytes: _Optional[int] = ..., stdout_closed: _Optional[bool] = ..., stderr_closed: _Optional[bool] = ..., stdin_taken_bytes: _Optional[int] = ...) -> None: ...

class StartProcessRequest(_message.Message):
    __slots__ = ("program", "id", "terminal", "size", "stdin", "merge_stderr", "timeout_ms", "request_id")
    PROGRAM_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    TERMINAL_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    STDIN_FIELD_NUMBER: _ClassVar[int]
    MERGE_STDERR_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    program: Program
    id: str
    terminal: bool
    size: WindowSize
    stdin: bool
    merge_stderr: bool
    timeout_ms: int
    request_id: str
    def __init__(self, program: _Optional[_Union[Program, _Mapping]] = ..., id: _Optional[str] = ..., terminal: _Optional[bool] = ..., size: _Optional[_Union[WindowSize, _Mapping]] = ..., stdin: _Optional[bool] = ..., merge_stderr: _Optional[bool] = ..., timeout_ms: _Optional[int] = ..., request_id: _Optional[str] = ...) -> None: ...

class StartProcessResponse(_message.Message):
    __slots__ = ("process",)
    PROCESS_FIELD_NUMBER: _ClassVar[int]
    process: Process
    def __init__(self, process: _Optional[_Union[Process, _Mapping]] = ...) -> None: ...

class ListProcessesRequest(_message.Message):
    __slots__ = ("thread", "running", "page_size", "page_token")
    THREAD_FIELD_NUMBER: _ClassVar[int]
    RUNNING_FIELD_NUMBER: _ClassVar[int]
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    thread: str
    running: bool
    page_size: int
    page_token: str
    def __init__(self, thread: _Optional[str] = ..., running: _Optional[bool] = ..., page_size: _Optional[int] = ..., page_token: _Optional[str] = ...) -> None: ...

class ListProcessesResponse(_message.Message):
    __slots__ = ("processes", "strays", "next_page_token")
    PROCESSES_FIELD_NUMBER: _ClassVar[int]
    STRAYS_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    processes: _containers.RepeatedCompositeFieldContainer[Process]
    strays: int
    next_page_token: str
    def __init__(self, processes: _Optional[_Iterable[_Union[Process, _Mapping]]] = ..., strays: _Optional[int] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class ReadProcessRequest(_message.Message):
    __slots__ = ("thread", "id", "stderr", "offset", "follow")
    THREAD_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    STDERR_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    FOLLOW_FIELD_NUMBER: _ClassVar[int]
    thread: str
    id: str
    stderr: bool
    offset: int
    follow: bool
    def __init__(self, thread: _Optional[str] = ..., id: _Optional[str] = ..., stderr: _Optional[bool] = ..., offset: _Optional[int] = ..., follow: _Optional[bool] = ...) -> None: ...

class ReadProcessResponse(_message.Message):
    __slots__ = ("offset", "data")
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    offset: int
    data: bytes
    def __init__(self, offset: _Optional[int] = ..., data: _Optional[bytes] = ...) -> None: ...

class WriteProcessRequest(_message.Message):
    __slots__ = ("thread", "id", "data", "end", "offset", "request_id")
    THREAD_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    thread: str
    id: str
    data: bytes
    end: bool
    offset: int
    request_id: str
    def __init__(self, thread: _Optional[str] = ..., id: _Optional[str] = ..., data: _Optional[bytes] = ..., end: _Optional[bool] = ..., offset: _Optional[int] = ..., request_id: _Optional[str] = ...) -> None: ...

class WriteProcessResponse(_message.Message):
    __slots__ = ("process",)
    PROCESS_FIELD_NUMBER: _ClassVar[int]
    process: Process
    def __init__(self, process: _Optional[_Union[Process, _Mapping]] = ...) -> None: ...

class ResizeProcessRequest(_message.Message):
    __slots__ = ("thread", "id", "size")
    THREAD_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    thread: str
    id: str
    size: WindowSize
    def __init__(self, thread: _Optional[str] = ..., id: _Optional[str] = ..., size: _Optional[_Union[WindowSize, _Mapping]] = ...) -> None: ...

class ResizeProcessResponse(_message.Message):
    __slots__ = ("process",)
    PROCESS_FIELD_NUMBER: _ClassVar[int]
    process: Process
    def __init__(self, process: _Optional[_Union[Process, _Mapping]] = ...) -> None: ...

class SignalProcessRequest(_message.Message):
    __slots__ = ("thread", "id", "signal", "tree")
    THREAD_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    SIGNAL_FIELD_NUMBER: _ClassVar[int]
    TREE_FIELD_NUMBER: _ClassVar[int]
    thread: str
    id: str
    signal: int
    tree: bool
    def __init__(self, thread: _Optional[str] = ..., id: _Optional[str] = ..., signal: _Optional[int] = ..., tree: _Optional[bool] = ...) -> None: ...

class SignalProcessResponse(_message.Message):
    __slots__ = ("process",)
    PROCESS_FIELD_NUMBER: _ClassVar[int]
    process: Process
    def __init__(self, process: _Optional[_Union[Process, _Mapping]] = ...) -> None: ...

class KillStraysRequest(_message.Message):
    __slots__ = ("thread",)
    THREAD_FIELD_NUMBER: _ClassVar[int]
    thread: str
    def __init__(self, thread: _Optional[str] = ...) -> None: ...

class KillStraysResponse(_message.Message):
    __slots__ = ("left",)
    LEFT_FIELD_NUMBER: _ClassVar[int]
    left: int
    def __init__(self, left: _Optional[int] = ...) -> None: ...

class WaitProcessRequest(_message.Message):
    __slots__ = ("thread", "id")
    THREAD_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    thread: str
    id: str
    def __init__(self, thread: _Optional[str] = ..., id: _Optional[str] = ...) -> None: ...

class WaitProcessResponse(_message.Message):
    __slots__ = ("process",)
    PROCESS_FIELD_NUMBER: _ClassVar[int]
    process: Process
    def __init__(self, process: _Optional[_Union[Process, _Mapping]] = ...) -> None: ...

class RemoveProcessRequest(_message.Message):
    __slots__ = ("thread", "id")
    THREAD_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    thread: str
    id: str
    def __init__(self, thread: _Optional[str] = ..., id: _Optional[str] = ...) -> None: ...

class RemoveProcessResponse(_message.Message):
    __slots__ = ("process",)
    PROCESS_FIELD_NUMBER: _ClassVar[int]
    process: Process
    def __init__(self, process: _Optional[_Union[Process, _Mapping]] = ...) -> None: ...
