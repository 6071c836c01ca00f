"""Upkeep of a lake beside a running feed: small files written together, old versions let go.

Each table's upkeep is one version of its own, made like any other: where the feed was faster, it is tried again, and where the feed comes
second, the feed looks again. Doing it twice changes nothing more. Runs wherever somebody asks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from penstock.model.clock import SystemClock
from penstock.model.errors import PenstockError
from penstock.model.table_pattern import TablePatterns
from penstock.sink.catalog import kind_of
from penstock.sink.lake.data_files import STAGED_DIR, table_dir
from penstock.sink.lake.feed_record import RECORD_PATH, Record
from penstock.sink.lake.format import LakeConflict, LakeFormat
from penstock.sink.lake.kind import LakeKind
from penstock.sink.lake.rewriting import Rewriting, grouped
from penstock.sink.lake.settings import Codec
from penstock.target.storage import ObjectTarget, TargetAddress

_TRIES_MAX = 10
_HOUR_MS = 3_600_000
_CHECKPOINT = ("penstock", "checkpoint")


class Kept(NamedTuple):
    """What was done to one table: how many files went, and how many came."""

    table: str
    removed: int
    added: int = 0


class Upkeep:
    """Looks after the tables of one lake."""

    def __init__(self, target: ObjectTarget, lake: LakeFormat, file_size: int) -> None:
        self._target = target
        self._lake = lake
        self._file_size = file_size

    @classmethod
    def open(cls, uri: str, options: Mapping[str, Any]) -> Upkeep:
        """Open a lake by the URI and the options of the feed that writes it."""
        kind = kind_of(uri)
        if not isinstance(kind, LakeKind):
            raise PenstockError("SINK_URI_INVALID", f"a target of kind {kind.name} has no tables of a lake")
        kind.check_library()
        place, settings = kind.settings(uri, options)
        target = TargetAddress(place).open()
        return cls(target, kind.open_lake(place, settings.catalog, target, ""), settings.file_size)

    def compact(self, patterns: Sequence[str]) -> Iterator[Kept]:
        """Write small files of tables together."""
        for schema, table in self._tables(patterns):
            removed, added = _settled(lambda s=schema, t=table: self._compacted(s, t))  # type: ignore[misc]
            yield Kept(f"{schema}.{table}", removed, added)

    def expire(self, patterns: Sequence[str], hours: int) -> Iterator[Kept]:
        """Let versions go that were replaced so many hours ago, and the files that only they had."""
        before_ms = SystemClock().now_ms() - hours * _HOUR_MS
        for schema, table in [*self._tables(patterns), _CHECKPOINT]:
            removed = _settled(lambda s=schema, t=table: (self._lake.expire(s, t, before_ms), 0))[0]  # type: ignore[misc]
            yield Kept(f"{schema}.{table}", removed)
        yield Kept(STAGED_DIR, self._expire_staged())

    def _compacted(self, schema: str, table: str) -> tuple[int, int]:
        """Write small files of one table together, in a version with the same rows; return how many went and came."""
        found = self._lake.open(schema, table)
        if found is None or found.table is None:
            return 0, 0
        small = [f for f in found.files() if f.nbytes < self._file_size // 2]
        name = f"{table_dir(schema, table)}/{found.mark.window_ts}-{found.table.table_id}-optimized"
        rewriting, groups = Rewriting(self._target, name, Codec.ZSTD), grouped(small, self._file_size)
        if groups:
            found.rewrite([rewriting.joined(group, found.schema) for group in groups], [f for group in groups for f in group])
        return sum(map(len, groups)), len(groups)

    def _tables(self, patterns: Sequence[str]) -> list[tuple[str, str]]:
        chosen = TablePatterns(tuple(patterns) or ("*.*",))
        return [(schema, table) for schema, table in self._lake.names() if chosen.match(schema, table)]

    def _expire_staged(self) -> int:
        """Delete what attempts left of windows that are in all tables."""
        content = self._target.find(RECORD_PATH)
        if content is None:
            return 0
        done = Record.of(content).window_ts
        paths = [path for path in self._target.paths(STAGED_DIR) if int(path.removeprefix(f"{STAGED_DIR}/").partition("/")[0]) <= done]
        for path in paths:
            self._target.delete(path)
        return len(paths)


def _settled(step: Callable[[], tuple[int, int]]) -> tuple[int, int]:
    for _ in range(_TRIES_MAX):
        try:
            return step()
        except LakeConflict:
            continue
    raise PenstockError("SINK_UNAVAILABLE", "a table never stood still")
