from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Verdict(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    VERDICT_UNSPECIFIED: _ClassVar[Verdict]
    VERDICT_ALLOW: _ClassVar[Verdict]
    VERDICT_ASK: _ClassVar[Verdict]
    VERDICT_DENY: _ClassVar[Verdict]
VERDICT_UNSPECIFIED: Verdict
VERDICT_ALLOW: Verdict
VERDICT_ASK: Verdict
VERDICT_DENY: Verdict

class ListToolsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListToolsResponse(_message.Message):
    __slots__ = ("tools",)
    TOOLS_FIELD_NUMBER: _ClassVar[int]
    tools: _containers.RepeatedCompositeFieldContainer[Tool]
    def __init__(self, tools: _Optional[_Iterable[_Union[Tool, _Mapping]]] = ...) -> None: ...

class Tool(_message.Message):
    __slots__ = ("name", "description", "parameters_json", "read_only")
    NAME_FIELD_NUMBER: _ClassVar[int]
    DESCRIPTION_FIELD_NUMBER: _ClassVar[int]
    PARAMETERS_JSON_FIELD_NUMBER: _ClassVar[int]
    READ_ONLY_FIELD_NUMBER: _ClassVar[int]
    name: str
    description: str
    parameters_json: str
    read_only: bool
    def __init__(self, name: _Optional[str] = ..., description: _Optional[str] = ..., parameters_json: _Optional[str] = ..., read_only: _Optional[bool] = ...) -> None: ...

class CallToolRequest(_message.Message):
    __slots__ = ("thread", "name", "arguments_json", "request_id")
    THREAD_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    ARGUMENTS_JSON_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    thread: str
    name: str
    arguments_json: str
    request_id: str
    def __init__(self, thread: _Optional[str] = ..., name: _Optional[str] = ..., arguments_json: _Optional[str] = ..., request_id: _Optional[str] = ...) -> None: ...

class StreamToolCallRequest(_message.Message):
    __slots__ = ("call",)
    CALL_FIELD_NUMBER: _ClassVar[int]
    call: CallToolRequest
    def __init__(self, call: _Optional[_Union[CallToolRequest, _Mapping]] = ...) -> None: ...

class CancelToolCallRequest(_message.Message):
    __slots__ = ("request_id",)
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    def __init__(self, request_id: _Optional[str] = ...) -> None: ...

class CancelToolCallResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class RunCallerToolRequest(_message.Message):
    __slots__ = ("call", "result")
    CALL_FIELD_NUMBER: _ClassVar[int]
    RESULT_FIELD_NUMBER: _ClassVar[int]
    call: CallerToolCall
    result: CallerToolResult
    def __init__(self, call: _Optional[_Union[CallerToolCall, _Mapping]] = ..., result: _Optional[_Union[CallerToolResult, _Mapping]] = ...) -> None: ...

class CallerToolCall(_message.Message):
    __slots__ = ("thread", "name", "arguments_json")
    THREAD_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    ARGUMENTS_JSON_FIELD_NUMBER: _ClassVar[int]
    thread: str
    name: str
    arguments_json: str
    def __init__(self, thread: _Optional[str] = ..., name: _Optional[str] = ..., arguments_json: _Optional[str] = ...) -> None: ...

class CallerToolResult(_message.Message):
    __slots__ = ("content", "is_error")
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    IS_ERROR_FIELD_NUMBER: _ClassVar[int]
    content: bytes
    is_error: bool
    def __init__(self, content: _Optional[bytes] = ..., is_error: _Optional[bool] = ...) -> None: ...

class RunCallerToolResponse(_message.Message):
    __slots__ = ("start", "result")
    START_FIELD_NUMBER: _ClassVar[int]
    RESULT_FIELD_NUMBER: _ClassVar[int]
    start: CallerToolStart
    result: ToolResult
    def __init__(self, start: _Optional[_Union[CallerToolStart, _Mapping]] = ..., result: _Optional[_Union[ToolResult, _Mapping]] = ...) -> None: ...

class CallerToolStart(_message.Message):
    __slots__ = ("call_id", "arguments_json")
    CALL_ID_FIELD_NUMBER: _ClassVar[int]
    ARGUMENTS_JSON_FIELD_NUMBER: _ClassVar[int]
    call_id: str
    arguments_json: str
    def __init__(self, call_id: _Optional[str] = ..., arguments_json: _Optional[str] = ...) -> None: ...

class CallToolResponse(_message.Message):
    __slots__ = ("result",)
    RESULT_FIELD_NUMBER: _ClassVar[int]
    result: ToolResult
    def __init__(self, result: _Optional[_Union[ToolResult, _Mapping]] = ...) -> None: ...

class StreamToolCallResponse(_message.Message):
    __slots__ = ("output", "result")
    OUTPUT_FIELD_NUMBER: _ClassVar[int]
    RESULT_FIELD_NUMBER: _ClassVar[int]
    output: ToolOutput
    result: ToolResult
    def __init__(self, output: _Optional[_Union[ToolOutput, _Mapping]] = ..., result: _Optional[_Union[ToolResult, _Mapping]] = ...) -> None: ...

class ToolOutput(_message.Message):
    __slots__ = ("stderr", "data")
    STDERR_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    stderr: bool
    data: bytes
    def __init__(self, stderr: _Optional[bool] = ..., data: _Optional[bytes] = ...) -> None: ...

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

class ToolResult(_message.Message):
    __slots__ = ("call_id", "thread", "verdict", "rule", "reason", "outcome", "exit_code", "content", "is_error", "evicted", "duration_ms", "stdout", "stderr", "note", "approval_id", "policy_version", "edited_arguments_json", "attachments", "structured_json")
    CALL_ID_FIELD_NUMBER: _ClassVar[int]
    THREAD_FIELD_NUMBER: _ClassVar[int]
    VERDICT_FIELD_NUMBER: _ClassVar[int]
    RULE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    EXIT_CODE_FIELD_NUMBER: _ClassVar[int]
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    IS_ERROR_FIELD_NUMBER: _ClassVar[int]
    EVICTED_FIELD_NUMBER: _ClassVar[int]
    DURATION_MS_FIELD_NUMBER: _ClassVar[int]
    STDOUT_FIELD_NUMBER: _ClassVar[int]
    STDERR_FIELD_NUMBER: _ClassVar[int]
    NOTE_FIELD_NUMBER: _ClassVar[int]
    APPROVAL_ID_FIELD_NUMBER: _ClassVar[int]
    POLICY_VERSION_FIELD_NUMBER: _ClassVar[int]
    EDITED_ARGUMENTS_JSON_FIELD_NUMBER: _ClassVar[int]
    ATTACHMENTS_FIELD_NUMBER: _ClassVar[int]
    STRUCTURED_JSON_FIELD_NUMBER: _ClassVar[int]
    call_id: str
    thread: str
    verdict: Verdict
    rule: str
    reason: str
    outcome: str
    exit_code: int
    content: bytes
    is_error: bool
    evicted: Evicted
    duration_ms: float
    stdout: bytes
    stderr: bytes
    note: str
    approval_id: str
    policy_version: str
    edited_arguments_json: str
    attachments: _containers.RepeatedCompositeFieldContainer[ResultFile]
    structured_json: str
    def __init__(self, call_id: _Optional[str] = ..., thread: _Optional[str] = ..., verdict: _Optional[_Union[Verdict, str]] = ..., rule: _Optional[str] = ..., reason: _Optional[str] = ..., outcome: _Optional[str] = ..., exit_code: _Optional[int] = ..., content: _Optional[bytes] = ..., is_error: _Optional[bool] = ..., evicted: _Optional[_Union[Evicted, _Mapping]] = ..., duration_ms: _Optional[float] = ..., stdout: _Optional[bytes] = ..., stderr: _Optional[bytes] = ..., note: _Optional[str] = ..., approval_id: _Optional[str] = ..., policy_version: _Optional[str] = ..., edited_arguments_json: _Optional[str] = ..., attachments: _Optional[_Iterable[_Union[ResultFile, _Mapping]]] = ..., structured_json: _Optional[str] = ...) -> None: ...

class ResultFile(_message.Message):
    __slots__ = ("path", "media_type", "size_bytes", "sha256")
    PATH_FIELD_NUMBER: _ClassVar[int]
    MEDIA_TYPE_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    SHA256_FIELD_NUMBER: _ClassVar[int]
    path: str
    media_type: str
    size_bytes: int
    sha256: str
    def __init__(self, path: _Optional[str] = ..., media_type: _Optional[str] = ..., size_bytes: _Optional[int] = ..., sha256: _Optional[str] = ...) -> None: ...
