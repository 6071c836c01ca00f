"""What a store's error means to the puller: the wire's error message as a code of the error table.

TRANSIENT codes send the region back to be looked up again; the others fail the span, except that a duplicate request (kind BUG) ends the
stream, and that the log is pulled where only the stream is refused. Runs in the log service.
"""

from __future__ import annotations

from google.protobuf.message import DecodeError

from penstock.model.errors import InvariantError, PenstockError
from penstock.source.proto import cdc_pb2


class RegionBusyError(PenstockError):
    """The store asks for patience: code CONGESTED, with the pause that it names."""

    def __init__(self, detail: str, backoff_ms: int = 0) -> None:
        super().__init__("CONGESTED", detail)
        self.backoff_ms = backoff_ms

    def __reduce__(self) -> tuple[type[RegionBusyError], tuple[str, int]]:
        return (RegionBusyError, (self.detail, self.backoff_ms))


class StreamRefusedError(PenstockError):
    """The store gives no change stream; it may give the log itself (``log_pull.py``)."""

    def __reduce__(self) -> tuple[type[StreamRefusedError], tuple[str, str]]:
        return (StreamRefusedError, (self.code, self.detail))


class PullRefusedError(PenstockError):
    """The store gives no log either: code UPSTREAM_REFUSED."""

    def __init__(self, detail: str) -> None:
        super().__init__("UPSTREAM_REFUSED", detail)

    def __reduce__(self) -> tuple[type[PullRefusedError], tuple[str]]:
        return (PullRefusedError, (self.detail,))


def region_error(payload: bytes, region_id: int) -> PenstockError:  # noqa: PLR0911 - one line per cause
    """Return the error that a serialized ``cdcpb.Error`` means; raises ``DECODE_FAILED`` for bytes that are none."""
    try:
        error = cdc_pb2.Error.FromString(payload)
    except DecodeError as cause:
        raise PenstockError("DECODE_FAILED", f"error message of region {region_id}: {len(payload)} bytes") from cause
    where = f"region {region_id}"
    if error.HasField("epoch_not_match"):
        return PenstockError("EPOCH_NOT_MATCH", f"{where}: {len(error.epoch_not_match.current_regions)} regions took its place")
    if error.HasField("not_leader"):
        return PenstockError("NOT_LEADER", f"{where}: led by store {error.not_leader.leader.store_id}")
    if error.HasField("region_not_found"):
        return PenstockError("REGION_NOT_FOUND", where)
    if error.HasField("server_is_busy"):
        return RegionBusyError(f"{where}: the store is busy", int(error.server_is_busy.backoff_ms))
    if error.HasField("congested"):
        return RegionBusyError(f"{where}: the stream is congested")
    if error.HasField("duplicate_request"):
        return InvariantError(f"{where}: the store says that it is registered twice")
    if error.HasField("compatibility"):
        return StreamRefusedError("UPSTREAM_REFUSED", f"{where}: the store wants protocol {error.compatibility.required_version!r}")
    if error.HasField("cluster_id_mismatch"):
        text = f"{where}: another server answers than the one that was captured (cluster {error.cluster_id_mismatch.current})"
        return PenstockError(
            "UPSTREAM_MISCONFIGURED", text, "Its data is not what the feed goes on from: create feeds with another --data-dir."
        )
    return RegionBusyError(f"{where}: an error that names no cause")
