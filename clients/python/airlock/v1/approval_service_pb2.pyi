import datetime

from google.protobuf import timestamp_pb2 as _timestamp_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ApprovalStatus(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    APPROVAL_STATUS_UNSPECIFIED: _ClassVar[ApprovalStatus]
    APPROVAL_STATUS_PENDING: _ClassVar[ApprovalStatus]
    APPROVAL_STATUS_APPROVED: _ClassVar[ApprovalStatus]
    APPROVAL_STATUS_USED: _ClassVar[ApprovalStatus]
    APPROVAL_STATUS_DENIED: _ClassVar[ApprovalStatus]
    APPROVAL_STATUS_EXPIRED: _ClassVar[ApprovalStatus]
    APPROVAL_STATUS_CANCELLED: _ClassVar[ApprovalStatus]

class Answer(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ANSWER_UNSPECIFIED: _ClassVar[Answer]
    ANSWER_ALLOW_ONCE: _ClassVar[Answer]
    ANSWER_ALLOW_RUN: _ClassVar[Answer]
    ANSWER_ALLOW_THREAD: _ClassVar[Answer]
    ANSWER_DENY: _ClassVar[Answer]
    ANSWER_EDIT: _ClassVar[Answer]
APPROVAL_STATUS_UNSPECIFIED: ApprovalStatus
APPROVAL_STATUS_PENDING: ApprovalStatus
APPROVAL_STATUS_APPROVED: ApprovalStatus
APPROVAL_STATUS_USED: ApprovalStatus
APPROVAL_STATUS_DENIED: ApprovalStatus
APPROVAL_STATUS_EXPIRED: ApprovalStatus
APPROVAL_STATUS_CANCELLED: ApprovalStatus
ANSWER_UNSPECIFIED: Answer
ANSWER_ALLOW_ONCE: Answer
ANSWER_ALLOW_RUN: Answer
ANSWER_ALLOW_THREAD: Answer
ANSWER_DENY: Answer
ANSWER_EDIT: Answer

class Approval(_message.Message):
    __slots__ = ("id", "thread", "run_id", "call_id", "tool", "arguments_json", "digest", "policy_version", "rule", "reason", "asked", "proposed_rule", "status", "answer", "message", "resolved_by", "edited_arguments_json", "created_at", "expires_at", "resolved_at", "arguments_size_bytes", "arguments_cut")
    ID_FIELD_NUMBER: _ClassVar[int]
    THREAD_FIELD_NUMBER: _ClassVar[int]
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    CALL_ID_FIELD_NUMBER: _ClassVar[int]
    TOOL_FIELD_NUMBER: _ClassVar[int]
    ARGUMENTS_JSON_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    POLICY_VERSION_FIELD_NUMBER: _ClassVar[int]
    RULE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    ASKED_FIELD_NUMBER: _ClassVar[int]
    PROPOSED_RULE_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    ANSWER_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    RESOLVED_BY_FIELD_NUMBER: _ClassVar[int]
    EDITED_ARGUMENTS_JSON_FIELD_NUMBER: _ClassVar[int]
    CREATED_AT_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_AT_FIELD_NUMBER: _ClassVar[int]
    RESOLVED_AT_FIELD_NUMBER: _ClassVar[int]
    ARGUMENTS_SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    ARGUMENTS_CUT_FIELD_NUMBER: _ClassVar[int]
    id: str
    thread: str
    run_id: str
    call_id: str
    tool: str
    arguments_json: str
    digest: str
    policy_version: str
    rule: str
    reason: str
    asked: _containers.RepeatedScalarFieldContainer[str]
    proposed_rule: str
    status: ApprovalStatus
    answer: Answer
    message: str
    resolved_by: str
    edited_arguments_json: str
    created_at: _timestamp_pb2.Timestamp
    expires_at: _timestamp_pb2.Timestamp
    resolved_at: _timestamp_pb2.Timestamp
    arguments_size_bytes: int
    arguments_cut: bool
    def __init__(self, id: _Optional[str] = ..., thread: _Optional[str] = ..., run_id: _Optional[str] = ..., call_id: _Optional[str] = ..., tool: _Optional[str] = ..., arguments_json: _Optional[str] = ..., digest: _Optional[str] = ..., policy_version: _Optional[str] = ..., rule: _Optional[str] = ..., reason: _Optional[str] = ..., asked: _Optional[_Iterable[str]] = ..., proposed_rule: _Optional[str] = ..., status: _Optional[_Union[ApprovalStatus, str]] = ..., answer: _Optional[_Union[Answer, str]] = ..., message: _Optional[str] = ..., resolved_by: _Optional[str] = ..., edited_arguments_json: _Optional[str] = ..., created_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., expires_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., resolved_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., arguments_size_bytes: _Optional[int] = ..., arguments_cut: _Optional[bool] = ...) -> None: ...

class ListApprovalsRequest(_message.Message):
    __slots__ = ("status", "thread", "run_id", "page_size", "page_token")
    STATUS_FIELD_NUMBER: _ClassVar[int]
    THREAD_FIELD_NUMBER: _ClassVar[int]
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    status: ApprovalStatus
    thread: str
    run_id: str
    page_size: int
    page_token: str
    def __init__(self, status: _Optional[_Union[ApprovalStatus, str]] = ..., thread: _Optional[str] = ..., run_id: _Optional[str] = ..., page_size: _Optional[int] = ..., page_token: _Optional[str] = ...) -> None: ...

class ListApprovalsResponse(_message.Message):
    __slots__ = ("approvals", "next_page_token")
    APPROVALS_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    approvals: _containers.RepeatedCompositeFieldContainer[Approval]
    next_page_token: str
    def __init__(self, approvals: _Optional[_Iterable[_Union[Approval, _Mapping]]] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class GetApprovalRequest(_message.Message):
    __slots__ = ("approval_id",)
    APPROVAL_ID_FIELD_NUMBER: _ClassVar[int]
    approval_id: str
    def __init__(self, approval_id: _Optional[str] = ...) -> None: ...

class GetApprovalResponse(_message.Message):
    __slots__ = ("approval",)
    APPROVAL_FIELD_NUMBER: _ClassVar[int]
    approval: Approval
    def __init__(self, approval: _Optional[_Union[Approval, _Mapping]] = ...) -> None: ...

class WatchApprovalsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class WatchApprovalsResponse(_message.Message):
    __slots__ = ("approval", "caught_up")
    APPROVAL_FIELD_NUMBER: _ClassVar[int]
    CAUGHT_UP_FIELD_NUMBER: _ClassVar[int]
    approval: Approval
    caught_up: bool
    def __init__(self, approval: _Optional[_Union[Approval, _Mapping]] = ..., caught_up: _Optional[bool] = ...) -> None: ...

class ResolveApprovalRequest(_message.Message):
    __slots__ = ("approval_id", "answer", "message", "arguments_json")
    APPROVAL_ID_FIELD_NUMBER: _ClassVar[int]
    ANSWER_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    ARGUMENTS_JSON_FIELD_NUMBER: _ClassVar[int]
    approval_id: str
    answer: Answer
    message: str
    arguments_json: str
    def __init__(self, approval_id: _Optional[str] = ..., answer: _Optional[_Union[Answer, str]] = ..., message: _Optional[str] = ..., arguments_json: _Optional[str] = ...) -> None: ...

class ResolveApprovalResponse(_message.Message):
    __slots__ = ("approval",)
    APPROVAL_FIELD_NUMBER: _ClassVar[int]
    approval: Approval
    def __init__(self, approval: _Optional[_Union[Approval, _Mapping]] = ...) -> None: ...

class Grant(_message.Message):
    __slots__ = ("id", "thread", "run_id", "rule", "approval_id", "granted_by", "created_at", "revoked_at", "in_force")
    ID_FIELD_NUMBER: _ClassVar[int]
    THREAD_FIELD_NUMBER: _ClassVar[int]
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    RULE_FIELD_NUMBER: _ClassVar[int]
    APPROVAL_ID_FIELD_NUMBER: _ClassVar[int]
    GRANTED_BY_FIELD_NUMBER: _ClassVar[int]
    CREATED_AT_FIELD_NUMBER: _ClassVar[int]
    REVOKED_AT_FIELD_NUMBER: _ClassVar[int]
    IN_FORCE_FIELD_NUMBER: _ClassVar[int]
    id: str
    thread: str
    run_id: str
    rule: str
    approval_id: str
    granted_by: str
    created_at: _timestamp_pb2.Timestamp
    revoked_at: _timestamp_pb2.Timestamp
    in_force: bool
    def __init__(self, id: _Optional[str] = ..., thread: _Optional[str] = ..., run_id: _Optional[str] = ..., rule: _Optional[str] = ..., approval_id: _Optional[str] = ..., granted_by: _Optional[str] = ..., created_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., revoked_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., in_force: _Optional[bool] = ...) -> None: ...

class ListGrantsRequest(_message.Message):
    __slots__ = ("thread", "include_ended", "page_size", "page_token")
    THREAD_FIELD_NUMBER: _ClassVar[int]
    INCLUDE_ENDED_FIELD_NUMBER: _ClassVar[int]
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    thread: str
    include_ended: bool
    page_size: int
    page_token: str
    def __init__(self, thread: _Optional[str] = ..., include_ended: _Optional[bool] = ..., page_size: _Optional[int] = ..., page_token: _Optional[str] = ...) -> None: ...

class ListGrantsResponse(_message.Message):
    __slots__ = ("grants", "next_page_token")
    GRANTS_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    grants: _containers.RepeatedCompositeFieldContainer[Grant]
    next_page_token: str
    def __init__(self, grants: _Optional[_Iterable[_Union[Grant, _Mapping]]] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class RevokeGrantRequest(_message.Message):
    __slots__ = ("grant_id",)
    GRANT_ID_FIELD_NUMBER: _ClassVar[int]
    grant_id: str
    def __init__(self, grant_id: _Optional[str] = ...) -> None: ...

class RevokeGrantResponse(_message.Message):
    __slots__ = ("grant",)
    GRANT_FIELD_NUMBER: _ClassVar[int]
    grant: Grant
    def __init__(self, grant: _Optional[_Union[Grant, _Mapping]] = ...) -> None: ...
