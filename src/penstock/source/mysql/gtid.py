"""GTID sets of both dialects: MariaDB's last sequence number per domain, MySQL's intervals per source.

``reached`` is the only order that positions of different servers have. Immutable; ``advanced`` gives a new set. Runs anywhere.
"""

from __future__ import annotations

import re
import struct
import uuid
from collections.abc import Mapping, Sequence

import numpy as np

from penstock.kernels.jit import I64
from penstock.model.errors import PenstockError

_MARIADB_ITEM = re.compile(r"^(\d+)-(\d+)-(\d+)$")
Interval = tuple[int, int]
"""First and last, both included."""


class MariadbGtids:
    """The last GTID of each domain, as ``@@gtid_binlog_pos`` writes it."""

    def __init__(self, last: Mapping[int, tuple[int, int]] | None = None) -> None:
        self._last = dict(last or {})

    @classmethod
    def parse(cls, text: str) -> MariadbGtids:
        """Read ``domain-server-sequence`` items."""
        last: dict[int, tuple[int, int]] = {}
        for item in filter(None, (i.strip() for i in text.split(","))):
            match = _MARIADB_ITEM.match(item)
            if match is None:
                raise PenstockError("CONFIG_INVALID", "a GTID of MariaDB is domain-server-sequence")
            domain, server, sequence = (int(g) for g in match.groups())
            if sequence >= last.get(domain, (0, -1))[1]:
                last[domain] = (server, sequence)
        return cls(last)

    def __str__(self) -> str:
        return ",".join(f"{domain}-{server}-{sequence}" for domain, (server, sequence) in sorted(self._last.items()))

    def advanced(self, domains: I64, servers: I64, sequences: I64) -> MariadbGtids:
        """Return the set after transactions in log order; a domain of -1 has no GTID."""
        last = dict(self._last)
        for domain in np.unique(domains):
            if domain >= 0:
                newest = int(np.flatnonzero(domains == domain)[-1])
                last[int(domain)] = (int(servers[newest]), int(sequences[newest]))
        return MariadbGtids(last)

    def has_server(self, server: str) -> bool:
        """Return whether the last GTID of a domain is a server's own; servers have numbers."""
        return any(str(number) == server for number, _ in self._last.values())

    def reached(self, end: MariadbGtids) -> bool:
        """Return whether everything of the other set is in this one."""
        return all(self._last.get(domain, (0, -1))[1] >= sequence for domain, (_, sequence) in end._last.items())


class MysqlGtids:
    """Intervals of sequence numbers per source, as ``@@gtid_executed`` writes them."""

    def __init__(self, intervals: Mapping[str, Sequence[Interval]] | None = None) -> None:
        self._intervals = {sid: _merged(found) for sid, found in (intervals or {}).items() if found}

    @classmethod
    def parse(cls, text: str) -> MysqlGtids:
        """Read ``uuid:1-5:7`` items; tagged GTIDs are refused."""
        intervals: dict[str, list[Interval]] = {}
        for item in filter(None, (i.strip() for i in text.replace("\n", "").split(","))):
            sid, *ranges = item.split(":")
            try:
                found = [(int(first), int(last or first)) for first, _, last in (r.partition("-") for r in ranges)]
                intervals.setdefault(str(uuid.UUID(sid)), []).extend(found)
            except ValueError:
                raise PenstockError("UPSTREAM_MISCONFIGURED", "tagged GTIDs are not supported") from None
        return cls(intervals)

    def __str__(self) -> str:
        return ",".join(
            f"{sid}:{':'.join(f'{a}-{b}' if b > a else str(a) for a, b in found)}" for sid, found in sorted(self._intervals.items())
        )

    def advanced(self, sids: Sequence[str], domains: I64, sequences: I64) -> MysqlGtids:
        """Return the set after transactions; ``domains`` are places in ``sids``, -1 has no GTID."""
        intervals: dict[str, list[Interval]] = {sid: list(found) for sid, found in self._intervals.items()}
        for domain in np.unique(domains):
            if domain < 0:
                continue
            numbers = np.sort(sequences[domains == domain])
            edges = np.flatnonzero(np.diff(numbers) > 1) + 1
            firsts = numbers[np.concatenate([[0], edges])]
            lasts = numbers[np.concatenate([edges - 1, [len(numbers) - 1]])]
            found = intervals.setdefault(sids[int(domain)], [])
            found += list(zip(firsts.tolist(), lasts.tolist(), strict=True))
        return MysqlGtids(intervals)

    def has_server(self, server: str) -> bool:
        """Return whether GTIDs are a server's own; servers have UUIDs."""
        return server.lower() in self._intervals

    def reached(self, end: MysqlGtids) -> bool:
        """Return whether everything of the other set is in this one."""
        for sid, wanted in end._intervals.items():
            mine = self._intervals.get(sid, ())
            if not all(any(a <= first and last <= b for a, b in mine) for first, last in wanted):
                return False
        return True

    def to_wire(self) -> bytes:
        """Return the set as the dump command takes it: ends are excluded there."""
        parts = [struct.pack("<Q", len(self._intervals))]
        for sid, found in sorted(self._intervals.items()):
            parts.append(uuid.UUID(sid).bytes + struct.pack("<Q", len(found)))
            parts += [struct.pack("<QQ", first, last + 1) for first, last in found]
        return b"".join(parts)


Gtids = MariadbGtids | MysqlGtids


def _merged(intervals: Sequence[Interval]) -> tuple[Interval, ...]:
    merged: list[Interval] = []
    for first, last in sorted(intervals):
        if merged and first <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(merged[-1][1], last))
        else:
            merged.append((first, last))
    return tuple(merged)
