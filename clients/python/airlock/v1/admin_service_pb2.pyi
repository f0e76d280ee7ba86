import datetime

from google.protobuf import timestamp_pb2 as _timestamp_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class KeyState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    KEY_STATE_UNSPECIFIED: _ClassVar[KeyState]
    KEY_STATE_WORKING: _ClassVar[KeyState]
    KEY_STATE_EXPIRED: _ClassVar[KeyState]
    KEY_STATE_REVOKED: _ClassVar[KeyState]
KEY_STATE_UNSPECIFIED: KeyState
KEY_STATE_WORKING: KeyState
KEY_STATE_EXPIRED: KeyState
KEY_STATE_REVOKED: KeyState

class Tenant(_message.Message):
    __slots__ = ("name", "policy_version", "stored")
    class StoredEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    NAME_FIELD_NUMBER: _ClassVar[int]
    POLICY_VERSION_FIELD_NUMBER: _ClassVar[int]
    STORED_FIELD_NUMBER: _ClassVar[int]
    name: str
    policy_version: str
    stored: _containers.ScalarMap[str, int]
    def __init__(self, name: _Optional[str] = ..., policy_version: _Optional[str] = ..., stored: _Optional[_Mapping[str, int]] = ...) -> None: ...

class ListTenantsRequest(_message.Message):
    __slots__ = ("page_size", "page_token")
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    page_size: int
    page_token: str
    def __init__(self, page_size: _Optional[int] = ..., page_token: _Optional[str] = ...) -> None: ...

class ListTenantsResponse(_message.Message):
    __slots__ = ("tenants", "next_page_token")
    TENANTS_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    tenants: _containers.RepeatedCompositeFieldContainer[Tenant]
    next_page_token: str
    def __init__(self, tenants: _Optional[_Iterable[_Union[Tenant, _Mapping]]] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class GetTenantRequest(_message.Message):
    __slots__ = ("tenant",)
    TENANT_FIELD_NUMBER: _ClassVar[int]
    tenant: str
    def __init__(self, tenant: _Optional[str] = ...) -> None: ...

class GetTenantResponse(_message.Message):
    __slots__ = ("tenant",)
    TENANT_FIELD_NUMBER: _ClassVar[int]
    tenant: Tenant
    def __init__(self, tenant: _Optional[_Union[Tenant, _Mapping]] = ...) -> None: ...

class DeleteTenantDataRequest(_message.Message):
    __slots__ = ("tenant", "audit")
    TENANT_FIELD_NUMBER: _ClassVar[int]
    AUDIT_FIELD_NUMBER: _ClassVar[int]
    tenant: str
    audit: bool
    def __init__(self, tenant: _Optional[str] = ..., audit: _Optional[bool] = ...) -> None: ...

class DeleteTenantDataResponse(_message.Message):
    __slots__ = ("removed", "left", "workspaces_removed", "audit_sequence")
    class RemovedEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    class LeftEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    REMOVED_FIELD_NUMBER: _ClassVar[int]
    LEFT_FIELD_NUMBER: _ClassVar[int]
    WORKSPACES_REMOVED_FIELD_NUMBER: _ClassVar[int]
    AUDIT_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    removed: _containers.ScalarMap[str, int]
    left: _containers.ScalarMap[str, int]
    workspaces_removed: int
    audit_sequence: int
    def __init__(self, removed: _Optional[_Mapping[str, int]] = ..., left: _Optional[_Mapping[str, int]] = ..., workspaces_removed: _Optional[int] = ..., audit_sequence: _Optional[int] = ...) -> None: ...

class Key(_message.Message):
    __slots__ = ("id", "tenant", "shown", "scopes", "name", "created_at", "expires_at", "revoked_at", "replaced_by")
    ID_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    SHOWN_FIELD_NUMBER: _ClassVar[int]
    SCOPES_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    CREATED_AT_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_AT_FIELD_NUMBER: _ClassVar[int]
    REVOKED_AT_FIELD_NUMBER: _ClassVar[int]
    REPLACED_BY_FIELD_NUMBER: _ClassVar[int]
    id: str
    tenant: str
    shown: str
    scopes: _containers.RepeatedScalarFieldContainer[str]
    name: str
    created_at: _timestamp_pb2.Timestamp
    expires_at: _timestamp_pb2.Timestamp
    revoked_at: _timestamp_pb2.Timestamp
    replaced_by: str
    def __init__(self, id: _Optional[str] = ..., tenant: _Optional[str] = ..., shown: _Optional[str] = ..., scopes: _Optional[_Iterable[str]] = ..., name: _Optional[str] = ..., created_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., expires_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., revoked_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., replaced_by: _Optional[str] = ...) -> None: ...

class CreateKeyRequest(_message.Message):
    __slots__ = ("tenant", "scopes", "name", "expires_in_s", "request_id")
    TENANT_FIELD_NUMBER: _ClassVar[int]
    SCOPES_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_IN_S_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    tenant: str
    scopes: _containers.RepeatedScalarFieldContainer[str]
    name: str
    expires_in_s: int
    request_id: str
    def __init__(self, tenant: _Optional[str] = ..., scopes: _Optional[_Iterable[str]] = ..., name: _Optional[str] = ..., expires_in_s: _Optional[int] = ..., request_id: _Optional[str] = ...) -> None: ...

class CreateKeyResponse(_message.Message):
    __slots__ = ("key", "secret")
    KEY_FIELD_NUMBER: _ClassVar[int]
    SECRET_FIELD_NUMBER: _ClassVar[int]
    key: Key
    secret: str
    def __init__(self, key: _Optional[_Union[Key, _Mapping]] = ..., secret: _Optional[str] = ...) -> None: ...

class ListKeysRequest(_message.Message):
    __slots__ = ("tenant", "include_ended", "page_size", "page_token", "scope", "state")
    TENANT_FIELD_NUMBER: _ClassVar[int]
    INCLUDE_ENDED_FIELD_NUMBER: _ClassVar[int]
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    SCOPE_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    tenant: str
    include_ended: bool
    page_size: int
    page_token: str
    scope: str
    state: KeyState
    def __init__(self, tenant: _Optional[str] = ..., include_ended: _Optional[bool] = ..., page_size: _Optional[int] = ..., page_token: _Optional[str] = ..., scope: _Optional[str] = ..., state: _Optional[_Union[KeyState, str]] = ...) -> None: ...

class ListKeysResponse(_message.Message):
    __slots__ = ("keys", "next_page_token")
    KEYS_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    keys: _containers.RepeatedCompositeFieldContainer[Key]
    next_page_token: str
    def __init__(self, keys: _Optional[_Iterable[_Union[Key, _Mapping]]] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class RevokeKeyRequest(_message.Message):
    __slots__ = ("key_id", "cancel_runs")
    KEY_ID_FIELD_NUMBER: _ClassVar[int]
    CANCEL_RUNS_FIELD_NUMBER: _ClassVar[int]
    key_id: str
    cancel_runs: bool
    def __init__(self, key_id: _Optional[str] = ..., cancel_runs: _Optional[bool] = ...) -> None: ...

class RevokeKeyResponse(_message.Message):
    __slots__ = ("key", "runs_under_way")
    KEY_FIELD_NUMBER: _ClassVar[int]
    RUNS_UNDER_WAY_FIELD_NUMBER: _ClassVar[int]
    key: Key
    runs_under_way: int
    def __init__(self, key: _Optional[_Union[Key, _Mapping]] = ..., runs_under_way: _Optional[int] = ...) -> None: ...

class RotateKeyRequest(_message.Message):
    __slots__ = ("key_id", "overlap_s", "request_id")
    KEY_ID_FIELD_NUMBER: _ClassVar[int]
    OVERLAP_S_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    key_id: str
    overlap_s: int
    request_id: str
    def __init__(self, key_id: _Optional[str] = ..., overlap_s: _Optional[int] = ..., request_id: _Optional[str] = ...) -> None: ...

class RotateKeyResponse(_message.Message):
    __slots__ = ("key", "secret")
    KEY_FIELD_NUMBER: _ClassVar[int]
    SECRET_FIELD_NUMBER: _ClassVar[int]
    key: Key
    secret: str
    def __init__(self, key: _Optional[_Union[Key, _Mapping]] = ..., secret: _Optional[str] = ...) -> None: ...

class GetPolicyRequest(_message.Message):
    __slots__ = ("tenant", "version")
    TENANT_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    tenant: str
    version: str
    def __init__(self, tenant: _Optional[str] = ..., version: _Optional[str] = ...) -> None: ...

class GetPolicyResponse(_message.Message):
    __slots__ = ("text", "version", "rules")
    TEXT_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    RULES_FIELD_NUMBER: _ClassVar[int]
    text: str
    version: str
    rules: _containers.RepeatedCompositeFieldContainer[PolicyRule]
    def __init__(self, text: _Optional[str] = ..., version: _Optional[str] = ..., rules: _Optional[_Iterable[_Union[PolicyRule, _Mapping]]] = ...) -> None: ...

class PolicyRule(_message.Message):
    __slots__ = ("id", "effect", "enforcement", "group")
    ID_FIELD_NUMBER: _ClassVar[int]
    EFFECT_FIELD_NUMBER: _ClassVar[int]
    ENFORCEMENT_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    id: str
    effect: str
    enforcement: str
    group: str
    def __init__(self, id: _Optional[str] = ..., effect: _Optional[str] = ..., enforcement: _Optional[str] = ..., group: _Optional[str] = ...) -> None: ...

class ApplyPolicyRequest(_message.Message):
    __slots__ = ("tenant", "text", "version", "comment", "check_only", "expected_version")
    TENANT_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    COMMENT_FIELD_NUMBER: _ClassVar[int]
    CHECK_ONLY_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_VERSION_FIELD_NUMBER: _ClassVar[int]
    tenant: str
    text: str
    version: str
    comment: str
    check_only: bool
    expected_version: str
    def __init__(self, tenant: _Optional[str] = ..., text: _Optional[str] = ..., version: _Optional[str] = ..., comment: _Optional[str] = ..., check_only: _Optional[bool] = ..., expected_version: _Optional[str] = ...) -> None: ...

class ApplyPolicyResponse(_message.Message):
    __slots__ = ("version",)
    VERSION_FIELD_NUMBER: _ClassVar[int]
    version: str
    def __init__(self, version: _Optional[str] = ...) -> None: ...

class PolicyChange(_message.Message):
    __slots__ = ("tenant", "version", "kind", "by", "comment", "at", "digest")
    TENANT_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    BY_FIELD_NUMBER: _ClassVar[int]
    COMMENT_FIELD_NUMBER: _ClassVar[int]
    AT_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    tenant: str
    version: str
    kind: str
    by: str
    comment: str
    at: _timestamp_pb2.Timestamp
    digest: str
    def __init__(self, tenant: _Optional[str] = ..., version: _Optional[str] = ..., kind: _Optional[str] = ..., by: _Optional[str] = ..., comment: _Optional[str] = ..., at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., digest: _Optional[str] = ...) -> None: ...

class ListPolicyChangesRequest(_message.Message):
    __slots__ = ("tenant", "page_size", "page_token")
    TENANT_FIELD_NUMBER: _ClassVar[int]
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    tenant: str
    page_size: int
    page_token: str
    def __init__(self, tenant: _Optional[str] = ..., page_size: _Optional[int] = ..., page_token: _Optional[str] = ...) -> None: ...

class ListPolicyChangesResponse(_message.Message):
    __slots__ = ("changes", "next_page_token")
    CHANGES_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    changes: _containers.RepeatedCompositeFieldContainer[PolicyChange]
    next_page_token: str
    def __init__(self, changes: _Optional[_Iterable[_Union[PolicyChange, _Mapping]]] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class McpTool(_message.Message):
    __slots__ = ("name", "description", "parameters_json", "digest", "status")
    NAME_FIELD_NUMBER: _ClassVar[int]
    DESCRIPTION_FIELD_NUMBER: _ClassVar[int]
    PARAMETERS_JSON_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    name: str
    description: str
    parameters_json: str
    digest: str
    status: str
    def __init__(self, name: _Optional[str] = ..., description: _Optional[str] = ..., parameters_json: _Optional[str] = ..., digest: _Optional[str] = ..., status: _Optional[str] = ...) -> None: ...

class McpServerPins(_message.Message):
    __slots__ = ("agent", "server", "status", "digest", "tools", "left_out", "accepted_by", "seen_at", "accepted_at")
    AGENT_FIELD_NUMBER: _ClassVar[int]
    SERVER_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    TOOLS_FIELD_NUMBER: _ClassVar[int]
    LEFT_OUT_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_BY_FIELD_NUMBER: _ClassVar[int]
    SEEN_AT_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_AT_FIELD_NUMBER: _ClassVar[int]
    agent: str
    server: str
    status: str
    digest: str
    tools: _containers.RepeatedCompositeFieldContainer[McpTool]
    left_out: _containers.RepeatedScalarFieldContainer[str]
    accepted_by: str
    seen_at: _timestamp_pb2.Timestamp
    accepted_at: _timestamp_pb2.Timestamp
    def __init__(self, agent: _Optional[str] = ..., server: _Optional[str] = ..., status: _Optional[str] = ..., digest: _Optional[str] = ..., tools: _Optional[_Iterable[_Union[McpTool, _Mapping]]] = ..., left_out: _Optional[_Iterable[str]] = ..., accepted_by: _Optional[str] = ..., seen_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., accepted_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class ListMcpPinsRequest(_message.Message):
    __slots__ = ("tenant", "agent", "server")
    TENANT_FIELD_NUMBER: _ClassVar[int]
    AGENT_FIELD_NUMBER: _ClassVar[int]
    SERVER_FIELD_NUMBER: _ClassVar[int]
    tenant: str
    agent: str
    server: str
    def __init__(self, tenant: _Optional[str] = ..., agent: _Optional[str] = ..., server: _Optional[str] = ...) -> None: ...

class ListMcpPinsResponse(_message.Message):
    __slots__ = ("servers",)
    SERVERS_FIELD_NUMBER: _ClassVar[int]
    servers: _containers.RepeatedCompositeFieldContainer[McpServerPins]
    def __init__(self, servers: _Optional[_Iterable[_Union[McpServerPins, _Mapping]]] = ...) -> None: ...

class AcceptMcpPinsRequest(_message.Message):
    __slots__ = ("tenant", "agent", "server", "digest")
    TENANT_FIELD_NUMBER: _ClassVar[int]
    AGENT_FIELD_NUMBER: _ClassVar[int]
    SERVER_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    tenant: str
    agent: str
    server: str
    digest: str
    def __init__(self, tenant: _Optional[str] = ..., agent: _Optional[str] = ..., server: _Optional[str] = ..., digest: _Optional[str] = ...) -> None: ...

class AcceptMcpPinsResponse(_message.Message):
    __slots__ = ("server",)
    SERVER_FIELD_NUMBER: _ClassVar[int]
    server: McpServerPins
    def __init__(self, server: _Optional[_Union[McpServerPins, _Mapping]] = ...) -> None: ...

class RemoveMcpPinsRequest(_message.Message):
    __slots__ = ("tenant", "agent", "server")
    TENANT_FIELD_NUMBER: _ClassVar[int]
    AGENT_FIELD_NUMBER: _ClassVar[int]
    SERVER_FIELD_NUMBER: _ClassVar[int]
    tenant: str
    agent: str
    server: str
    def __init__(self, tenant: _Optional[str] = ..., agent: _Optional[str] = ..., server: _Optional[str] = ...) -> None: ...

class RemoveMcpPinsResponse(_message.Message):
    __slots__ = ("server",)
    SERVER_FIELD_NUMBER: _ClassVar[int]
    server: McpServerPins
    def __init__(self, server: _Optional[_Union[McpServerPins, _Mapping]] = ...) -> None: ...
