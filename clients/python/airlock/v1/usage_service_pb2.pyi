import datetime

from google.protobuf import timestamp_pb2 as _timestamp_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class UsageGroup(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    USAGE_GROUP_UNSPECIFIED: _ClassVar[UsageGroup]
    USAGE_GROUP_DAY: _ClassVar[UsageGroup]
    USAGE_GROUP_MODEL: _ClassVar[UsageGroup]
    USAGE_GROUP_AGENT: _ClassVar[UsageGroup]
USAGE_GROUP_UNSPECIFIED: UsageGroup
USAGE_GROUP_DAY: UsageGroup
USAGE_GROUP_MODEL: UsageGroup
USAGE_GROUP_AGENT: UsageGroup

class Usage(_message.Message):
    __slots__ = ("requests", "input_tokens", "cached_input_tokens", "output_tokens", "reasoning_tokens", "estimated_tokens", "cost_usd")
    REQUESTS_FIELD_NUMBER: _ClassVar[int]
    INPUT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    CACHED_INPUT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    REASONING_TOKENS_FIELD_NUMBER: _ClassVar[int]
    ESTIMATED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    COST_USD_FIELD_NUMBER: _ClassVar[int]
    requests: int
    input_tokens: int
    cached_input_tokens: int
    output_tokens: int
    reasoning_tokens: int
    estimated_tokens: int
    cost_usd: float
    def __init__(self, requests: _Optional[int] = ..., input_tokens: _Optional[int] = ..., cached_input_tokens: _Optional[int] = ..., output_tokens: _Optional[int] = ..., reasoning_tokens: _Optional[int] = ..., estimated_tokens: _Optional[int] = ..., cost_usd: _Optional[float] = ...) -> None: ...

class GetUsageRequest(_message.Message):
    __slots__ = ("tenant", "since", "until", "by")
    TENANT_FIELD_NUMBER: _ClassVar[int]
    SINCE_FIELD_NUMBER: _ClassVar[int]
    UNTIL_FIELD_NUMBER: _ClassVar[int]
    BY_FIELD_NUMBER: _ClassVar[int]
    tenant: str
    since: _timestamp_pb2.Timestamp
    until: _timestamp_pb2.Timestamp
    by: _containers.RepeatedScalarFieldContainer[UsageGroup]
    def __init__(self, tenant: _Optional[str] = ..., since: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., until: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., by: _Optional[_Iterable[_Union[UsageGroup, str]]] = ...) -> None: ...

class GetUsageResponse(_message.Message):
    __slots__ = ("totals", "since")
    TOTALS_FIELD_NUMBER: _ClassVar[int]
    SINCE_FIELD_NUMBER: _ClassVar[int]
    totals: _containers.RepeatedCompositeFieldContainer[UsageTotal]
    since: _timestamp_pb2.Timestamp
    def __init__(self, totals: _Optional[_Iterable[_Union[UsageTotal, _Mapping]]] = ..., since: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class UsageTotal(_message.Message):
    __slots__ = ("day_at", "model", "agent", "usage")
    DAY_AT_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    AGENT_FIELD_NUMBER: _ClassVar[int]
    USAGE_FIELD_NUMBER: _ClassVar[int]
    day_at: _timestamp_pb2.Timestamp
    model: str
    agent: str
    usage: Usage
    def __init__(self, day_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., model: _Optional[str] = ..., agent: _Optional[str] = ..., usage: _Optional[_Union[Usage, _Mapping]] = ...) -> None: ...
