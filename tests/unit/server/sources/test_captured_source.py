from __future__ import annotations

from pathlib import Path

from penstock.config.server_tree import ServerConfig, SparkConfig
from penstock.server.sources.captured_source import flight_socket


def test_where_all_readers_are_this_users_no_other_can_reach_flight() -> None:
    """gRPC takes a message whole before it asks for the token: 200 MiB from anybody, where a port is open."""
    store, source = Path("/data/store"), "dataserver://127.0.0.1:1"
    assert flight_socket(ServerConfig(source), 0, store) == store / "flight.sock"
    assert flight_socket(ServerConfig(source, spark=SparkConfig("local-cluster[2,1,1024]")), 0, store) == store / "flight.sock"
    # Readers elsewhere, or who were told a port, find one.
    assert flight_socket(ServerConfig(source, spark=SparkConfig("spark://h:7077")), 0, store) is None
    assert flight_socket(ServerConfig(source), 8301, store) is None
    assert flight_socket(ServerConfig(source, flight_host="10.0.0.7"), 0, store) is None
    for odd in ("/my data/store", "/" + "x" * 100, "/%41/store"):
        assert flight_socket(ServerConfig(source), 0, Path(odd)) is None
