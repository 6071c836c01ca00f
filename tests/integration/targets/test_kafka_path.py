"""From the embedded data server to Kafka: windows that die, restarts, owners that change; a plain client rebuilds the tables exactly."""

import contextlib
import io
import random
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fastavro
import pytest

from penstock.model.errors import PenstockError
from penstock.model.failpoints import FAILPOINTS
from penstock.sink.kafka.transactions import KEPT
from testing.paths.local_feed import LocalFeed
from testing.paths.whole_path import WholePath, read_state
from testing.servers.kafka.broker import CUT, KafkaBroker, kafka_broker
from testing.servers.kafka.consumer import Read, canal_changes, debezium_changes, read_topics, rebuilt
from testing.servers.kafka.registry import Registry, schema_registry

SETUP = [
    "CREATE DATABASE d",
    "CREATE TABLE d.a (id INT PRIMARY KEY, v VARCHAR(40))",
    "CREATE TABLE d.b (id INT PRIMARY KEY, v VARCHAR(40), n BIGINT DEFAULT 7)",
]


@pytest.fixture
def broker() -> Iterator[KafkaBroker]:
    with kafka_broker() as broker:
        yield broker
    KEPT.close()
    FAILPOINTS.arm("")


def table_of(broker: KafkaBroker, name: str, protocol: str) -> dict[str, dict[str, Any]]:
    """Rebuild a table from its topic and the truncations that the control topic tells; a change that does not fit is an error."""
    read = canal_changes if protocol == "canal-json" else debezium_changes
    changes = sorted(read(read_topics(broker.address, [f"lake.{name}"])), key=lambda change: change[0])
    control = [m for m in read_topics(broker.address, ["lake.control"]) if m.headers["penstock.type"] == b"ddl"]
    cleared = [int(m.headers["penstock.commit-ts"]) for m in control if b"TRUNCATE TABLE " + name.encode() in (m.value or b"")]
    since = max(cleared, default=0)
    rebuilt([change for change in changes if change[0] < since], "id")
    return rebuilt([change for change in changes if change[0] >= since], "id")


@pytest.mark.parametrize(("protocol", "spans"), [("canal-json", 2), ("debezium", 1)])
def test_tables_are_rebuilt_exactly_from_messages(broker: KafkaBroker, tmp_path: Path, protocol: str, spans: int) -> None:
    rng = random.Random(7)
    uri = f"kafka://{broker.address}/lake?protocol={protocol}"
    splits = {"d.a": [10]} if spans > 1 else None
    with contextlib.closing(WholePath(tmp_path, SETUP, splits=splits, spans_per_table=spans, target_uri=uri)) as path:
        alive: dict[str, set[int]] = {"d.a": set(), "d.b": set()}
        for step in range(24):
            name = rng.choice(["d.a", "d.b"])
            ids = set(rng.sample(range(20), rng.randint(1, 6)))
            gone = {i for i in ids & alive[name] if rng.random() < 0.3}
            path.write({name: {i: f"{step}-{i}" for i in ids - gone}}, {name: gone})
            alive[name] = (alive[name] | ids) - gone
            if step == 8:
                path.upstream.execute_ddl("ALTER TABLE d.b ADD COLUMN more INT DEFAULT 3")
            if step == 16:
                path.upstream.execute_ddl("TRUNCATE TABLE d.b")
                alive["d.b"] = set()
            if step % 4 == 1:
                FAILPOINTS.arm(f"kafka-commit:{'before' if step % 8 == 1 else 'after'}=raise@{1 + step % 3}")
                with contextlib.suppress(PenstockError):
                    path.feed.run_window()
                FAILPOINTS.arm("")
            if step % 4 == 2:
                path.feed.run_window(commit=False)
            if step == 11:
                path.restart()
            if step in {5, 15}:
                # The old owner goes on as if nothing had happened, and must change nothing.
                KEPT.close()
                zombie = LocalFeed(path.take_over(f"owner {step}"))
                path.feed.run_window(commit=False)
                with contextlib.suppress(PenstockError):
                    zombie.run_window()
        path.drain()
        for name in ("d.a", "d.b"):
            state = read_state(path.upstream, path.table(name), path.upstream.current_ts())
            wanted = {str(row["id"]): {key: _shown(value, protocol) for key, value in row.items()} for row in state.to_dicts()}
            assert set(wanted) == {str(i) for i in alive[name]}
            assert table_of(broker, name, protocol) == wanted
        marks = [m for m in read_topics(broker.address, ["lake.control"]) if m.headers["penstock.type"] == b"watermark"]
        order = [int(m.headers["penstock.commit-ts"]) for m in marks]
        assert order == sorted(set(order)), "watermarks only rise"
        assert order[-1] == path.feed.checkpoint_ts()
        ddls = [m for m in read_topics(broker.address, ["lake.control"]) if m.headers["penstock.type"] == b"ddl"]
        assert len(ddls) == len({m.key for m in ddls}) == 2, "each once"


def _shown(value: Any, protocol: str) -> Any:
    return str(value) if protocol == "canal-json" and value is not None else value


def avro_changes(messages: list[Read], registry: Registry) -> list[tuple[int, str, dict[str, Any]]]:
    """Return (commit ts, type, row) of Avro messages, each under the schema that it names, as they come."""
    found = []
    for message in messages:
        value = message.value or b""
        schema = fastavro.parse_schema(registry.schema(struct.unpack(">I", value[1:5])[0]))
        row: Any = fastavro.schemaless_reader(io.BytesIO(value[5:]), schema, None)
        found.append((row.pop("_commit_ts"), {"c": "INSERT", "u": "UPDATE", "d": "DELETE"}[row.pop("_op")], row))
    return found


@pytest.mark.parametrize("query", ["protocol=avro", "protocol=debezium&schemas=true", "delivery=at-least-once"])
def test_tables_are_rebuilt_although_brokers_fail(tmp_path: Path, query: str) -> None:
    """An answer is lost after a commit, a request is refused, and a broker goes and comes back with what it kept."""
    rng = random.Random(5)
    with contextlib.ExitStack() as servers, schema_registry() as registry:
        broker = servers.enter_context(kafka_broker())
        port = int(broker.address.rpartition(":")[2])
        uri = f"kafka://{broker.address}/lake?{query}&schema-registry={registry.url}"
        with contextlib.closing(WholePath(tmp_path, SETUP, target_uri=uri)) as path:
            alive: set[int] = set()
            for step in range(6):
                ids = set(rng.sample(range(20), 8))
                gone = {i for i in ids & alive if rng.random() < 0.4}
                path.write({"d.a": {i: f"{step}-{i}" for i in ids - gone}}, {"d.a": gone})
                alive = (alive | ids) - gone
                left = ["EndTxn", "OffsetCommit"] if step == 1 else ["Produce"] if step == 4 else []

                def fault(api: str, side: str, left: list[str] = left) -> int | str | None:
                    if api in left and side == "after":
                        left.clear()
                        return CUT
                    return None

                broker.fault = fault
                with contextlib.suppress(PenstockError):
                    path.feed.run_window(commit=step != 2)
                broker.fault = lambda api, side: None
                if step == 3:
                    servers.close()
                    broker = servers.enter_context(kafka_broker(kept=broker.kept, port=port))
                if step == 2:
                    path.upstream.execute_ddl("ALTER TABLE d.a ADD COLUMN more INT DEFAULT 3")
            for _ in range(50):
                # Clients that the broker left come back by and by.
                with contextlib.suppress(PenstockError):
                    path.drain()
                    break
            state = read_state(path.upstream, path.table("d.a"), path.upstream.current_ts())
            messages = read_topics(broker.address, ["lake.d.a"])
            assert len({(m.key, m.partition) for m in messages}) == len({m.key for m in messages}), "a key is in one partition"
            by_key: dict[Any, list[int]] = {}
            for message in messages:
                by_key.setdefault(message.key, []).append(int(message.headers["penstock.commit-ts"]))
            if "avro" in query:
                changes = avro_changes(messages, registry)
            else:
                changes = (debezium_changes if "debezium" in query else canal_changes)(messages)
            if "at-least-once" in query:
                # Some came twice; each time as it was, so that whoever takes the newest of a key by its ts has the table.
                changes = sorted({(ts, kind, str(row)): (ts, kind, row) for ts, kind, row in changes}.values(), key=lambda one: one[0])
            else:
                assert all(order == sorted(set(order)) for order in by_key.values()), "the order of a key, each change once"
            protocol = "" if "protocol" in query else "canal-json"
            wanted = {str(row["id"]): {key: _shown(value, protocol) for key, value in row.items()} for row in state.to_dicts()}
            found = rebuilt(sorted(changes, key=lambda one: one[0]), "id")
            # Rows from before the column have it from the DDL, which the control topic tells.
            assert {key: {"more": _shown(3, protocol)} | row for key, row in found.items()} == wanted
    KEPT.close()
