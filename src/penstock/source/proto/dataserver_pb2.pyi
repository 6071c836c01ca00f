from penstock.source.proto import cdc_pb2 as _cdc_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Empty(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class TsResponse(_message.Message):
    __slots__ = ("ts",)
    TS_FIELD_NUMBER: _ClassVar[int]
    ts: int
    def __init__(self, ts: _Optional[int] = ...) -> None: ...

class ListTablesRequest(_message.Message):
    __slots__ = ("ts",)
    TS_FIELD_NUMBER: _ClassVar[int]
    ts: int
    def __init__(self, ts: _Optional[int] = ...) -> None: ...

class ListTablesResponse(_message.Message):
    __slots__ = ("ts", "table_schemas")
    TS_FIELD_NUMBER: _ClassVar[int]
    TABLE_SCHEMAS_FIELD_NUMBER: _ClassVar[int]
    ts: int
    table_schemas: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, ts: _Optional[int] = ..., table_schemas: _Optional[_Iterable[bytes]] = ...) -> None: ...

class SchemaHistoryRequest(_message.Message):
    __slots__ = ("table_id",)
    TABLE_ID_FIELD_NUMBER: _ClassVar[int]
    table_id: int
    def __init__(self, table_id: _Optional[int] = ...) -> None: ...

class SchemaHistoryResponse(_message.Message):
    __slots__ = ("table_schemas", "ts")
    TABLE_SCHEMAS_FIELD_NUMBER: _ClassVar[int]
    TS_FIELD_NUMBER: _ClassVar[int]
    table_schemas: _containers.RepeatedScalarFieldContainer[bytes]
    ts: int
    def __init__(self, table_schemas: _Optional[_Iterable[bytes]] = ..., ts: _Optional[int] = ...) -> None: ...

class RangeInfo(_message.Message):
    __slots__ = ("range_id", "table_id", "start_key", "end_key", "epoch", "store_id", "store_addr")
    RANGE_ID_FIELD_NUMBER: _ClassVar[int]
    TABLE_ID_FIELD_NUMBER: _ClassVar[int]
    START_KEY_FIELD_NUMBER: _ClassVar[int]
    END_KEY_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    STORE_ID_FIELD_NUMBER: _ClassVar[int]
    STORE_ADDR_FIELD_NUMBER: _ClassVar[int]
    range_id: int
    table_id: int
    start_key: bytes
    end_key: bytes
    epoch: _cdc_pb2.RegionEpoch
    store_id: int
    store_addr: str
    def __init__(self, range_id: _Optional[int] = ..., table_id: _Optional[int] = ..., start_key: _Optional[bytes] = ..., end_key: _Optional[bytes] = ..., epoch: _Optional[_Union[_cdc_pb2.RegionEpoch, _Mapping]] = ..., store_id: _Optional[int] = ..., store_addr: _Optional[str] = ...) -> None: ...

class ListRangesRequest(_message.Message):
    __slots__ = ("start_key", "end_key")
    START_KEY_FIELD_NUMBER: _ClassVar[int]
    END_KEY_FIELD_NUMBER: _ClassVar[int]
    start_key: bytes
    end_key: bytes
    def __init__(self, start_key: _Optional[bytes] = ..., end_key: _Optional[bytes] = ...) -> None: ...

class ListRangesResponse(_message.Message):
    __slots__ = ("ranges",)
    RANGES_FIELD_NUMBER: _ClassVar[int]
    ranges: _containers.RepeatedCompositeFieldContainer[RangeInfo]
    def __init__(self, ranges: _Optional[_Iterable[_Union[RangeInfo, _Mapping]]] = ...) -> None: ...

class DdlRequest(_message.Message):
    __slots__ = ("query",)
    QUERY_FIELD_NUMBER: _ClassVar[int]
    query: str
    def __init__(self, query: _Optional[str] = ...) -> None: ...

class DdlResponse(_message.Message):
    __slots__ = ("commit_ts",)
    COMMIT_TS_FIELD_NUMBER: _ClassVar[int]
    commit_ts: int
    def __init__(self, commit_ts: _Optional[int] = ...) -> None: ...

class Mutation(_message.Message):
    __slots__ = ("op", "key", "value")
    OP_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    op: int
    key: bytes
    value: bytes
    def __init__(self, op: _Optional[int] = ..., key: _Optional[bytes] = ..., value: _Optional[bytes] = ...) -> None: ...

class PrewriteRequest(_message.Message):
    __slots__ = ("start_ts", "primary", "mutations")
    START_TS_FIELD_NUMBER: _ClassVar[int]
    PRIMARY_FIELD_NUMBER: _ClassVar[int]
    MUTATIONS_FIELD_NUMBER: _ClassVar[int]
    start_ts: int
    primary: bytes
    mutations: _containers.RepeatedCompositeFieldContainer[Mutation]
    def __init__(self, start_ts: _Optional[int] = ..., primary: _Optional[bytes] = ..., mutations: _Optional[_Iterable[_Union[Mutation, _Mapping]]] = ...) -> None: ...

class CommitRequest(_message.Message):
    __slots__ = ("start_ts",)
    START_TS_FIELD_NUMBER: _ClassVar[int]
    start_ts: int
    def __init__(self, start_ts: _Optional[int] = ...) -> None: ...

class RollbackRequest(_message.Message):
    __slots__ = ("start_ts",)
    START_TS_FIELD_NUMBER: _ClassVar[int]
    start_ts: int
    def __init__(self, start_ts: _Optional[int] = ...) -> None: ...

class TxnResponse(_message.Message):
    __slots__ = ("commit_ts",)
    COMMIT_TS_FIELD_NUMBER: _ClassVar[int]
    commit_ts: int
    def __init__(self, commit_ts: _Optional[int] = ...) -> None: ...

class SplitRequest(_message.Message):
    __slots__ = ("key",)
    KEY_FIELD_NUMBER: _ClassVar[int]
    key: bytes
    def __init__(self, key: _Optional[bytes] = ...) -> None: ...

class MoveLeaderRequest(_message.Message):
    __slots__ = ("range_id", "store_id")
    RANGE_ID_FIELD_NUMBER: _ClassVar[int]
    STORE_ID_FIELD_NUMBER: _ClassVar[int]
    range_id: int
    store_id: int
    def __init__(self, range_id: _Optional[int] = ..., store_id: _Optional[int] = ...) -> None: ...

class MergeRequest(_message.Message):
    __slots__ = ("left_range_id",)
    LEFT_RANGE_ID_FIELD_NUMBER: _ClassVar[int]
    left_range_id: int
    def __init__(self, left_range_id: _Optional[int] = ...) -> None: ...

class CdcError(_message.Message):
    __slots__ = ("code", "message")
    CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    code: str
    message: str
    def __init__(self, code: _Optional[str] = ..., message: _Optional[str] = ...) -> None: ...

class CdcRegisterRequest(_message.Message):
    __slots__ = ("range_id", "range_epoch", "subscriber_name")
    RANGE_ID_FIELD_NUMBER: _ClassVar[int]
    RANGE_EPOCH_FIELD_NUMBER: _ClassVar[int]
    SUBSCRIBER_NAME_FIELD_NUMBER: _ClassVar[int]
    range_id: int
    range_epoch: _cdc_pb2.RegionEpoch
    subscriber_name: str
    def __init__(self, range_id: _Optional[int] = ..., range_epoch: _Optional[_Union[_cdc_pb2.RegionEpoch, _Mapping]] = ..., subscriber_name: _Optional[str] = ...) -> None: ...

class CdcRegisterResponse(_message.Message):
    __slots__ = ("error", "init_snapshot_version")
    ERROR_FIELD_NUMBER: _ClassVar[int]
    INIT_SNAPSHOT_VERSION_FIELD_NUMBER: _ClassVar[int]
    error: CdcError
    init_snapshot_version: int
    def __init__(self, error: _Optional[_Union[CdcError, _Mapping]] = ..., init_snapshot_version: _Optional[int] = ...) -> None: ...

class CdcChangeData(_message.Message):
    __slots__ = ("type", "key", "value", "commit_ts", "old_value")
    TYPE_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    COMMIT_TS_FIELD_NUMBER: _ClassVar[int]
    OLD_VALUE_FIELD_NUMBER: _ClassVar[int]
    type: int
    key: bytes
    value: bytes
    commit_ts: int
    old_value: bytes
    def __init__(self, type: _Optional[int] = ..., key: _Optional[bytes] = ..., value: _Optional[bytes] = ..., commit_ts: _Optional[int] = ..., old_value: _Optional[bytes] = ...) -> None: ...

class CdcPullSnapshotRequest(_message.Message):
    __slots__ = ("range_id", "range_epoch", "subscriber_name", "current_snapshot_version", "last_key", "limit_rows")
    RANGE_ID_FIELD_NUMBER: _ClassVar[int]
    RANGE_EPOCH_FIELD_NUMBER: _ClassVar[int]
    SUBSCRIBER_NAME_FIELD_NUMBER: _ClassVar[int]
    CURRENT_SNAPSHOT_VERSION_FIELD_NUMBER: _ClassVar[int]
    LAST_KEY_FIELD_NUMBER: _ClassVar[int]
    LIMIT_ROWS_FIELD_NUMBER: _ClassVar[int]
    range_id: int
    range_epoch: _cdc_pb2.RegionEpoch
    subscriber_name: str
    current_snapshot_version: int
    last_key: bytes
    limit_rows: int
    def __init__(self, range_id: _Optional[int] = ..., range_epoch: _Optional[_Union[_cdc_pb2.RegionEpoch, _Mapping]] = ..., subscriber_name: _Optional[str] = ..., current_snapshot_version: _Optional[int] = ..., last_key: _Optional[bytes] = ..., limit_rows: _Optional[int] = ...) -> None: ...

class CdcPullSnapshotResponse(_message.Message):
    __slots__ = ("error", "current_snapshot_version", "snapshot_data", "end")
    ERROR_FIELD_NUMBER: _ClassVar[int]
    CURRENT_SNAPSHOT_VERSION_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_DATA_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    error: CdcError
    current_snapshot_version: int
    snapshot_data: _containers.RepeatedCompositeFieldContainer[CdcChangeData]
    end: bool
    def __init__(self, error: _Optional[_Union[CdcError, _Mapping]] = ..., current_snapshot_version: _Optional[int] = ..., snapshot_data: _Optional[_Iterable[_Union[CdcChangeData, _Mapping]]] = ..., end: _Optional[bool] = ...) -> None: ...

class CdcPullLogRequest(_message.Message):
    __slots__ = ("range_id", "range_epoch", "subscriber_name", "last_log_index", "limit_rows", "start_ts", "as_stream")
    RANGE_ID_FIELD_NUMBER: _ClassVar[int]
    RANGE_EPOCH_FIELD_NUMBER: _ClassVar[int]
    SUBSCRIBER_NAME_FIELD_NUMBER: _ClassVar[int]
    LAST_LOG_INDEX_FIELD_NUMBER: _ClassVar[int]
    LIMIT_ROWS_FIELD_NUMBER: _ClassVar[int]
    START_TS_FIELD_NUMBER: _ClassVar[int]
    AS_STREAM_FIELD_NUMBER: _ClassVar[int]
    range_id: int
    range_epoch: _cdc_pb2.RegionEpoch
    subscriber_name: str
    last_log_index: int
    limit_rows: int
    start_ts: int
    as_stream: bool
    def __init__(self, range_id: _Optional[int] = ..., range_epoch: _Optional[_Union[_cdc_pb2.RegionEpoch, _Mapping]] = ..., subscriber_name: _Optional[str] = ..., last_log_index: _Optional[int] = ..., limit_rows: _Optional[int] = ..., start_ts: _Optional[int] = ..., as_stream: _Optional[bool] = ...) -> None: ...

class CdcPullLogResponse(_message.Message):
    __slots__ = ("error", "log_data", "current_log_index", "resolved_ts", "previous_log_index", "change_data_event")
    ERROR_FIELD_NUMBER: _ClassVar[int]
    LOG_DATA_FIELD_NUMBER: _ClassVar[int]
    CURRENT_LOG_INDEX_FIELD_NUMBER: _ClassVar[int]
    RESOLVED_TS_FIELD_NUMBER: _ClassVar[int]
    PREVIOUS_LOG_INDEX_FIELD_NUMBER: _ClassVar[int]
    CHANGE_DATA_EVENT_FIELD_NUMBER: _ClassVar[int]
    error: CdcError
    log_data: _containers.RepeatedCompositeFieldContainer[CdcChangeData]
    current_log_index: int
    resolved_ts: int
    previous_log_index: int
    change_data_event: bytes
    def __init__(self, error: _Optional[_Union[CdcError, _Mapping]] = ..., log_data: _Optional[_Iterable[_Union[CdcChangeData, _Mapping]]] = ..., current_log_index: _Optional[int] = ..., resolved_ts: _Optional[int] = ..., previous_log_index: _Optional[int] = ..., change_data_event: _Optional[bytes] = ...) -> None: ...

class ReadRowsRequest(_message.Message):
    __slots__ = ("start_key", "end_key", "ts", "limit_rows")
    START_KEY_FIELD_NUMBER: _ClassVar[int]
    END_KEY_FIELD_NUMBER: _ClassVar[int]
    TS_FIELD_NUMBER: _ClassVar[int]
    LIMIT_ROWS_FIELD_NUMBER: _ClassVar[int]
    start_key: bytes
    end_key: bytes
    ts: int
    limit_rows: int
    def __init__(self, start_key: _Optional[bytes] = ..., end_key: _Optional[bytes] = ..., ts: _Optional[int] = ..., limit_rows: _Optional[int] = ...) -> None: ...

class ReadRowsResponse(_message.Message):
    __slots__ = ("keys", "values", "commit_ts")
    KEYS_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    COMMIT_TS_FIELD_NUMBER: _ClassVar[int]
    keys: _containers.RepeatedScalarFieldContainer[bytes]
    values: _containers.RepeatedScalarFieldContainer[bytes]
    commit_ts: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, keys: _Optional[_Iterable[bytes]] = ..., values: _Optional[_Iterable[bytes]] = ..., commit_ts: _Optional[_Iterable[int]] = ...) -> None: ...
