"""Errors of a store as codes: the wire's own messages are the oracle of what each is called."""

import pickle

import pytest

from penstock.model.errors import ErrorKind, PenstockError
from penstock.puller.ranged.region_errors import RegionBusyError, region_error
from penstock.source.proto import cdc_pb2

CODES = {
    "epoch_not_match": ("EPOCH_NOT_MATCH", ErrorKind.TRANSIENT),
    "not_leader": ("NOT_LEADER", ErrorKind.TRANSIENT),
    "region_not_found": ("REGION_NOT_FOUND", ErrorKind.TRANSIENT),
    "server_is_busy": ("CONGESTED", ErrorKind.TRANSIENT),
    "congested": ("CONGESTED", ErrorKind.TRANSIENT),
    "duplicate_request": ("INTERNAL", ErrorKind.BUG),
    "compatibility": ("UPSTREAM_REFUSED", ErrorKind.BLOCKED),
    "cluster_id_mismatch": ("UPSTREAM_MISCONFIGURED", ErrorKind.BLOCKED),
}


def test_every_cause_of_the_wire_has_a_code() -> None:
    assert {field.name for field in cdc_pb2.Error.DESCRIPTOR.fields} == set(CODES)


@pytest.mark.parametrize("cause", CODES)
def test_causes(cause: str) -> None:
    message = cdc_pb2.Error()
    getattr(message, cause).SetInParent()
    error = region_error(message.SerializeToString(), 12)
    assert (error.code, error.kind) == CODES[cause]
    assert "region 12" in error.detail


def test_a_busy_store_names_its_pause_in_every_process() -> None:
    busy = cdc_pb2.Error()
    busy.server_is_busy.backoff_ms = 700
    error = pickle.loads(pickle.dumps(region_error(busy.SerializeToString(), 1)))
    assert isinstance(error, RegionBusyError)
    assert error.backoff_ms == 700


def test_an_error_without_a_cause_is_tried_again_and_bytes_that_are_none_are_not() -> None:
    assert region_error(b"", 1).kind is ErrorKind.TRANSIENT
    with pytest.raises(PenstockError) as caught:
        region_error(b"\xff\xff", 1)
    assert caught.value.code == "DECODE_FAILED"
