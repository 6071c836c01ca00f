"""Checkers of the storage engine: what must hold whatever was written and whatever failed.

``TargetWitness`` sees every change of the target: no data file ever changes, an index names only files that are there and never goes
back, a checkpoint comes after all its rows. ``AttemptWitness`` sees one sink: acknowledgements once and in order, flushed only when rows
are in files that an index names, memory within its bounds. They raise ``AssertionError`` in the moment when a rule breaks. Runs in tests.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Sequence

import obstore
import pyarrow as pa
from obstore.store import MemoryStore

from penstock.format.layout.paths import METADATA_PATH, DataDir, DataPath, parse_schema_path
from penstock.sink.contract import DispatcherId, DispatcherResult
from penstock.sink.storage.sink import EngineSettings, StorageSink
from penstock.sink.wake_gate import WakeGate, WakeGateSettings
from penstock.target.settings import StorageSinkSettings

_ID = re.compile(rb'^"[A-Z]","t\d+","sim",(\d+),(\d+),', re.MULTILINE)
CHUNK_SLACK_BYTES = 8 << 10


class TargetWitness:
    """What the target holds, as it changes."""

    def __init__(self, store: MemoryStore, settings: StorageSinkSettings) -> None:
        self._store = store
        self._layout = settings.layout
        self._data: dict[str, bytes] = {}
        self._rows: dict[str, list[tuple[int, int]]] = {}
        self._of_table: dict[str, list[tuple[str, DataPath, str]]] = defaultdict(list)
        """Each table's files: path, what the path says, and the path of the index."""
        self._numbers: dict[tuple[DataDir, str], set[int]] = defaultdict(set)
        self._schemas: set[tuple[str, int]] = set()
        self._indexes: dict[str, int] = {}
        self._expected: dict[DispatcherId, list[tuple[int, int]]] = defaultdict(list)
        self._before: dict[DispatcherId, int] = {}

    # -- the target

    def changed(self, verb: str, path: str) -> None:
        """See an operation that took effect."""
        if verb not in {"create", "write"}:
            return
        content = bytes(obstore.get(self._store, path).bytes())
        data, index = self._layout.parse_data(path), self._layout.parse_index(path)
        if data is not None:
            if path not in self._data:
                self._data[path] = content
                self._rows[path] = [(int(ts), int(number)) for ts, number in _ID.findall(content)]
                self._of_table[data.dir.table].append((path, data, self._layout.index_path(data.dir, data.dispatcher)))
                self._numbers[data.dir, data.dispatcher].add(data.number)
            assert self._data[path] == content, f"{path} changed"
        elif index is not None:
            name = content.decode().strip()
            named = self._layout.parse_data(f"{self._layout.dir_path(index.dir)}/{name}")
            assert named is not None, name
            assert named.number >= self._indexes.get(path, 0), f"{path} went back"
            self._indexes[path] = named.number
            there = self._numbers[index.dir, index.dispatcher]
            assert there >= set(range(1, named.number + 1)), f"{path} names {named.number}, there are {there}"
            assert (index.dir.table, index.dir.version) in self._schemas, f"{path} without its schema file"
        elif (schema := parse_schema_path(path)) is not None:
            self._schemas.add((schema.table, schema.version))

    def indexed_rows(self, dispatcher: DispatcherId) -> int:
        """Return how many of a dispatcher's rows are in files that an index names."""
        files = self._of_table[f"t{dispatcher.table_id}"]
        return sum(len(self._rows[path]) for path, data, index in files if data.number <= self._indexes.get(index, 0))

    def check_files(self) -> None:
        """No data file differs from what it was when it was first seen."""
        for path, content in self._data.items():
            assert bytes(obstore.get(self._store, path).bytes()) == content, f"{path} changed"

    # -- windows

    def begin_window(self, script: dict[DispatcherId, list[pa.RecordBatch]]) -> None:
        """Note what a window brings."""
        for dispatcher, batches in script.items():
            self._before[dispatcher] = len(self._expected[dispatcher])
            for records in batches:
                pairs = zip(records.column(0).to_pylist(), records.column(2).to_pylist(), strict=True)
                self._expected[dispatcher] += pairs

    def rows_before(self, dispatcher: DispatcherId) -> int:
        """Return how many rows earlier windows brought."""
        return self._before[dispatcher]

    def end_window(self, results: Sequence[DispatcherResult], to_ts: int) -> None:
        """See the published checkpoint: every row up to it is in a file that an index names."""
        assert str(to_ts).encode() in bytes(obstore.get(self._store, METADATA_PATH).bytes())
        for result in results:
            expected = self._expected[result.dispatcher]
            assert self.indexed_rows(result.dispatcher) == len(expected)
            assert result.rows == len(expected) - self._before[result.dispatcher]
            assert [f.nbytes for f in result.files] == [len(self._data[f.path]) for f in result.files]

    def check_same(self, first: Sequence[DispatcherResult], again: Sequence[DispatcherResult]) -> None:
        """Another attempt of a finished window gave the same results."""
        assert list(first) == list(again)

    def check_rows(self) -> None:
        """Every row is there once, in order, in files that are numbered without gaps."""
        for dispatcher, expected in self._expected.items():
            files = self._of_table[f"t{dispatcher.table_id}"]
            mine = sorted((data.dir.version, data.dir.date, data.number, path) for path, data, _ in files)
            found = [row for *_, path in mine for row in self._rows[path]]
            assert found == expected, f"dispatcher {dispatcher}"
        for (directory, name), numbers in self._numbers.items():
            assert numbers == set(range(1, len(numbers) + 1)), f"{directory}: {sorted(numbers)}"
            assert self._indexes[self._layout.index_path(directory, name)] == len(numbers)


class AttemptWitness:
    """The acknowledgements and bounds of one sink."""

    def __init__(self, target: TargetWitness, sink: StorageSink, engine: EngineSettings, chunk_bytes: int) -> None:
        self._target = target
        self._sink = sink
        assert engine.spool is not None
        self._memory_max = engine.spool.memory_bytes_max
        # Each encoder may have put one chunk beyond the limit; encoded rows are larger than what chunks are measured by.
        self._slack_bytes = engine.encoder_threads * (3 * chunk_bytes + CHUNK_SLACK_BYTES)
        self._rows: dict[DispatcherId, int] = defaultdict(int)
        self._given: dict[DispatcherId, int] = defaultdict(int)
        self._enqueued: dict[DispatcherId, int] = defaultdict(int)
        self._flushed: dict[DispatcherId, int] = defaultdict(int)
        self._closed = False

    def event(self, dispatcher: DispatcherId, rows: int, wake: Callable[[], None]) -> tuple[Callable[[], None], Callable[[], None]]:
        """Return the callbacks of the dispatcher's next event, which hold the rules."""
        number = self._given[dispatcher]
        self._given[dispatcher] += 1
        self._rows[dispatcher] += rows
        wanted = self._target.rows_before(dispatcher) + self._rows[dispatcher]

        def enqueued() -> None:
            assert not self._closed, "woken after the end"
            assert self._enqueued[dispatcher] == number, f"woken {number} after {self._enqueued[dispatcher]}"
            self._enqueued[dispatcher] += 1
            wake()

        def flushed() -> None:
            assert not self._closed, "flushed after the end"
            assert self._flushed[dispatcher] == number, f"flushed {number} after {self._flushed[dispatcher]}"
            self._flushed[dispatcher] += 1
            durable = self._target.indexed_rows(dispatcher)
            assert durable >= wanted, f"flushed with {durable} of {wanted} rows in the target"

        return enqueued, flushed

    def check_drained(self, dispatcher: DispatcherId) -> None:
        """See a drain that came out: everything that was given is in the target, and acknowledged."""
        wanted = self._target.rows_before(dispatcher) + self._rows[dispatcher]
        assert self._target.indexed_rows(dispatcher) >= wanted
        assert self._flushed[dispatcher] == self._given[dispatcher]

    def check_bounds(self, gate: WakeGate, limits: WakeGateSettings) -> None:
        """See that what waits and what is in memory keeps to its limits."""
        assert gate.events <= limits.events_max or self._sink._latch.error is not None
        spool, writers = self._sink.engine.spool, self._sink.engine.writers
        assert spool.level.memory_bytes <= self._memory_max + writers.under_way_bytes + self._slack_bytes
        assert writers.under_way_bytes <= self._memory_max // 2 or writers.under_way_files <= 2

    def check_after_close(self) -> None:
        """Nothing fires once the sink is closed."""
        self._closed = True
        assert self._sink.engine.spool.level.nbytes >= 0
