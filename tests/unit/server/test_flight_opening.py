from __future__ import annotations

import logging
from contextlib import closing
from pathlib import Path

import pytest

from penstock.config.server_tree import ServerConfig, SparkConfig
from penstock.model.clock import SystemClock
from penstock.model.errors import PenstockError
from penstock.server.flight_opening import flight_socket, open_flight, reached_here_only
from penstock.settings.loader import load
from penstock.store.event_store import ColumnarEventStore
from penstock.store.flight.client import FlightStoreClient
from penstock.store.flight.credentials import make_tls, split_token


def test_where_all_readers_are_this_users_no_other_can_reach_flight() -> None:
    """gRPC takes a message whole before it asks for the token: 200 MiB from anybody, where a port is open."""
    store, source = Path("/data/store"), "dataserver://127.0.0.1:1"
    assert flight_socket(ServerConfig(source), store, 0) == store / "flight.sock"
    assert flight_socket(ServerConfig(source, spark=SparkConfig("local-cluster[2,1,1024]")), store, 0) == store / "flight.sock"
    # Readers elsewhere, or who were told a port, find one.
    assert flight_socket(ServerConfig(source, spark=SparkConfig("spark://h:7077")), store, 0) is None
    assert flight_socket(ServerConfig(source), store, 8301) is None
    assert flight_socket(ServerConfig(source, flight_host="10.0.0.7"), store, 0) is None
    for odd in ("/my data/store", "/" + "x" * 100, "/%41/store"):
        assert flight_socket(ServerConfig(source), Path(odd), 0) is None


def config_of(**given: object) -> ServerConfig:
    settings = {key.replace("_", "-"): value for key, value in given.items()}
    return load(ServerConfig, {"source": "dataserver://127.0.0.1:1", "spark": {"master": "spark://127.0.0.1:7077"}, **settings})


@pytest.mark.parametrize("own", ["made", "given", "plain"])
def test_a_port_speaks_tls_unless_it_is_said_otherwise(tmp_path: Path, own: str) -> None:
    clock, given = SystemClock(), {}
    operators = make_tls(["127.0.0.1"], clock)
    if own == "given":
        both = tmp_path / "both.pem"
        both.write_bytes(operators.certificate + operators.key)
        given = {"flight_tls_certificate": str(both)}
    elif own == "plain":
        given = {"flight_plain_text": True}
    with ColumnarEventStore(tmp_path / "store") as store, closing(open_flight(config_of(**given), store, tmp_path, clock)) as flight:
        assert flight.location.startswith("grpc://" if own == "plain" else "grpc+tls://")
        with closing(FlightStoreClient(flight.location, flight.token)) as client:
            assert client.span_status() == {}
        reader = split_token(flight.token)[1]
        assert (reader is None) == (own == "plain")
        if own == "given":
            assert reader is not None
            assert reader.ca.encode() == operators.certificate


def test_a_further_source_is_told_by_its_own_port(tmp_path: Path) -> None:
    config, clock = config_of(flight_advertise="store.example:8301"), SystemClock()
    with ColumnarEventStore(tmp_path / "store") as store:
        with closing(open_flight(config, store, tmp_path, clock)) as own:
            assert own.location.endswith("//store.example:8301")
        with closing(open_flight(config, store, tmp_path, clock, 0)) as further:
            assert "//store.example:" in further.location
            assert not further.location.endswith(":8301")


def test_a_certificate_that_is_not_there(tmp_path: Path) -> None:
    missing = config_of(flight_tls_certificate=str(tmp_path / "none.pem"))
    with ColumnarEventStore(tmp_path / "store") as store, pytest.raises(PenstockError, match=r"flight-tls-certificate: .*none.pem"):
        open_flight(missing, store, tmp_path, SystemClock())


def test_loopback_and_a_cluster_of_others_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    cluster = {"master": "spark://cluster.example:7077"}
    assert reached_here_only(config_of(spark=cluster))
    assert not reached_here_only(config_of(spark=cluster, flight_host="10.0.0.7"))
    assert not reached_here_only(config_of(spark=cluster, flight_advertise="store.example:8301"))
    with ColumnarEventStore(tmp_path / "store") as store, caplog.at_level(logging.WARNING):
        open_flight(config_of(), store, tmp_path, SystemClock()).close()
        assert caplog.records == []
        open_flight(config_of(spark=cluster), store, tmp_path, SystemClock()).close()
        assert "give flight-host" in caplog.text
