"""Tables of a lake as a kind of target, whatever their format: a format is a folder beside this one. Runs anywhere."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, unquote, urlsplit

from penstock.model.errors import PenstockError
from penstock.model.finding import Finding
from penstock.settings.loader import Problems, dotted_keys
from penstock.settings.masking import mask_text
from penstock.sink.kind import TargetKind
from penstock.sink.lake.settings import BUCKET_PARAMETERS, LakeSettings, store_uri
from penstock.sink.options import read_options
from penstock.target.kind import SinkRun

if TYPE_CHECKING:
    from penstock.sink.lake.columns import LakeShape
    from penstock.sink.lake.format import LakeFormat
    from penstock.sink.lake.maintainer import LakeMaintainer
    from penstock.sink.lake.readback.lake_state import LakeState
    from penstock.sink.lake.readback.lake_tables import LakeTables
    from penstock.sink.lake.sink import LakeSink
    from penstock.target.storage import Guard, ObjectTarget

_PARAMETERS = BUCKET_PARAMETERS | {name.replace("-", "_") for name in BUCKET_PARAMETERS}


class LakeKind(TargetKind):
    """What Delta Lake and Iceberg are alike in."""

    option_keys = frozenset(dotted_keys(LakeSettings))
    library: str
    """The module of the format's library, which is also the name of what is installed."""
    has_small_ints: bool
    partition_in_files: bool

    @abstractmethod
    def open_lake(self, uri: str, catalog: str, target: ObjectTarget, feed: str) -> LakeFormat:
        """Return the tables of a lake; ``uri`` is that of the object store."""

    def settings(self, uri: str, options: Mapping[str, Any]) -> tuple[str, LakeSettings]:
        """Return the URI of the object store, and the settings."""
        found, settings = read_options(LakeSettings, uri, options, _PARAMETERS)
        problems = Problems()
        for key, what in settings.problems():
            problems.add(key, what)
        if settings.catalog and "catalog" not in self.option_keys:
            problems.add("catalog", f"is not for {self.name}")
        problems.raise_if_any()
        return store_uri(found), settings

    def make_sink(self, uri: str, options: Mapping[str, Any], guard: Guard | None, run: SinkRun) -> LakeSink:
        """Return the sink of one task."""
        from penstock.sink.lake.sink import LakeSink
        from penstock.target.storage import TargetAddress

        place, settings = self.settings(uri, options)
        target = TargetAddress(place).open(guard=guard)
        return LakeSink(target, self.shape(settings), lambda: self.open_lake(place, settings.catalog, target, run.feed))

    def make_maintainer(
        self, uri: str, options: Mapping[str, Any], guard: Guard, run: SinkRun, answer_s_max: float | None = None
    ) -> LakeMaintainer:
        """Return the part that acts once per feed."""
        from penstock.sink.lake.maintainer import LakeMaintainer
        from penstock.target.storage import RetrySettings, TargetAddress

        self.check_library()
        place, settings = self.settings(uri, options)
        retry = RetrySettings() if answer_s_max is None else RetrySettings(request_s_max=answer_s_max, total_s_max=answer_s_max)
        target = TargetAddress(place, retry).open(guard=guard)
        return LakeMaintainer(target, self.shape(settings), run, lambda: self.open_lake(place, settings.catalog, target, run.feed))

    def make_tables(self, uri: str, options: Mapping[str, Any]) -> LakeTables:
        """Return the tables that the lake holds."""
        from penstock.sink.lake.readback.lake_tables import LakeTables

        return LakeTables(*self._read(uri, options))

    def make_state(self, uri: str, options: Mapping[str, Any]) -> LakeState:
        """Return what reads the lake back for a feed whose history is lost."""
        from penstock.sink.lake.readback.lake_state import LakeState

        return LakeState(*self._read(uri, options))

    def _read(self, uri: str, options: Mapping[str, Any]) -> tuple[ObjectTarget, LakeShape, Callable[[str], LakeFormat]]:
        from penstock.target.storage import TargetAddress

        self.check_library()
        place, settings = self.settings(uri, options)
        target = TargetAddress(place).open()
        return target, self.shape(settings), lambda feed: self.open_lake(place, settings.catalog, target, feed)

    def check(self, uri: str, options: Mapping[str, Any], feed: str | None) -> list[Finding]:
        """Return whether the library is there, and whether objects can be created and deleted in the lake."""
        from penstock.sink.lake.feed_record import FeedRecord
        from penstock.target.storage import TargetAddress

        extra = f"pip install 'penstock[{self.name}]'"
        found = [Finding("target: library", find_spec(self.library) is not None, self.library, f"{self.library}: {extra}")]
        place = self.settings(uri, options)[0]
        folder = Path(unquote(urlsplit(place).path)) if urlsplit(place).scheme == "file" else None
        made = folder is not None and not folder.exists()
        try:
            record = FeedRecord(TargetAddress(place).open())
            if feed is None:
                record.mark.probe()
            else:
                record.mark.check(feed)
            found.append(Finding("target: writable", True, "objects are created and deleted", "objects can be created and deleted"))
        except PenstockError as error:
            found.append(Finding("target: writable", False, mask_text(error.detail), error.hint))
        if made and folder is not None:
            # A doctor leaves no folder behind.
            with suppress(OSError):
                folder.rmdir()
        return found

    def hosts(self, uri: str) -> Sequence[str]:
        """Return the host of an endpoint that the URI gives."""
        given = dict(parse_qsl(urlsplit(uri).query))
        found = [urlsplit(given[key]).hostname for key in ("endpoint", "endpoint-url", "endpoint_url") if key in given]
        return [host for host in found if host]

    def shape(self, settings: LakeSettings) -> LakeShape:
        """Return how tables are shown."""
        from penstock.sink.lake.columns import LakeShape

        return LakeShape(settings, self.has_small_ints, self.partition_in_files)

    def check_library(self) -> None:
        """Raise where the format's library is not installed."""
        if find_spec(self.library) is None:
            raise PenstockError("MISSING_DEPENDENCY", f"{self.library} is not installed: pip install 'penstock[{self.name}]'")
