from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class RequestHeader(_message.Message):
    __slots__ = ("source", "reason")
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    source: str
    reason: str
    def __init__(self, source: _Optional[str] = ..., reason: _Optional[str] = ...) -> None: ...

class CDCSink(_message.Message):
    __slots__ = ("type", "config")
    class ConfigEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    TYPE_FIELD_NUMBER: _ClassVar[int]
    CONFIG_FIELD_NUMBER: _ClassVar[int]
    type: str
    config: _containers.ScalarMap[str, str]
    def __init__(self, type: _Optional[str] = ..., config: _Optional[_Mapping[str, str]] = ...) -> None: ...

class CDCSubscriber(_message.Message):
    __slots__ = ("subscriber_name", "db_name", "table_name", "table_id", "master_addrs", "sink", "cancel", "owner", "uuid")
    SUBSCRIBER_NAME_FIELD_NUMBER: _ClassVar[int]
    DB_NAME_FIELD_NUMBER: _ClassVar[int]
    TABLE_NAME_FIELD_NUMBER: _ClassVar[int]
    TABLE_ID_FIELD_NUMBER: _ClassVar[int]
    MASTER_ADDRS_FIELD_NUMBER: _ClassVar[int]
    SINK_FIELD_NUMBER: _ClassVar[int]
    CANCEL_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    UUID_FIELD_NUMBER: _ClassVar[int]
    subscriber_name: str
    db_name: str
    table_name: str
    table_id: int
    master_addrs: str
    sink: str
    cancel: bool
    owner: str
    uuid: str
    def __init__(self, subscriber_name: _Optional[str] = ..., db_name: _Optional[str] = ..., table_name: _Optional[str] = ..., table_id: _Optional[int] = ..., master_addrs: _Optional[str] = ..., sink: _Optional[str] = ..., cancel: _Optional[bool] = ..., owner: _Optional[str] = ..., uuid: _Optional[str] = ...) -> None: ...

class SubscribeCDCRequest(_message.Message):
    __slots__ = ("header", "db_name", "table_name", "subscriber_name", "sink")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    DB_NAME_FIELD_NUMBER: _ClassVar[int]
    TABLE_NAME_FIELD_NUMBER: _ClassVar[int]
    SUBSCRIBER_NAME_FIELD_NUMBER: _ClassVar[int]
    SINK_FIELD_NUMBER: _ClassVar[int]
    header: RequestHeader
    db_name: str
    table_name: str
    subscriber_name: str
    sink: CDCSink
    def __init__(self, header: _Optional[_Union[RequestHeader, _Mapping]] = ..., db_name: _Optional[str] = ..., table_name: _Optional[str] = ..., subscriber_name: _Optional[str] = ..., sink: _Optional[_Union[CDCSink, _Mapping]] = ...) -> None: ...

class SubscribeCDCResponse(_message.Message):
    __slots__ = ("subscriber",)
    SUBSCRIBER_FIELD_NUMBER: _ClassVar[int]
    subscriber: CDCSubscriber
    def __init__(self, subscriber: _Optional[_Union[CDCSubscriber, _Mapping]] = ...) -> None: ...
