"""Finds the kind of a target by the scheme of its URI, and opens it. Runs on executors and in the server.

Every folder beside this module that names ``SCHEMES`` is a kind (``sink/kind.py``). What it is made of is imported when one is opened: the
processes of tasks start often, and need one kind each.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Callable, Mapping
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from penstock.model.errors import PenstockError
from penstock.model.table import TableSchema
from penstock.settings.loader import did_you_mean
from penstock.settings.masking import mask_uri
from penstock.target.kind import NO_RUN, SinkRun, TargetSettings
from penstock.target.settings import CONNECTION_SCHEME

if TYPE_CHECKING:
    from penstock.model.clock import Clock
    from penstock.model.finding import Finding
    from penstock.sink.contract import Sink, SinkMaintainer
    from penstock.sink.kind import TargetKind
    from penstock.target.expiry import CleanUp
    from penstock.target.state import TargetState
    from penstock.target.storage import Guard
    from penstock.target.tables import TargetTables

_PACKAGE = "penstock.sink"
_FIRST = "storage"


@cache
def schemes() -> dict[str, str]:
    """Return the folder of each scheme, files first."""
    import penstock.sink as package

    folders = sorted(
        (found.name for found in pkgutil.iter_modules(package.__path__) if found.ispkg), key=lambda name: (name != _FIRST, name)
    )
    return {scheme: folder for folder in folders for scheme in getattr(import_module(f"{_PACKAGE}.{folder}"), "SCHEMES", ())}


def kind_of(uri: str) -> TargetKind:
    """Return the kind of the target that a URI names; one behind a connection is taken for files until that is known."""
    try:
        scheme = urlsplit(uri).scheme
    except ValueError as error:
        raise PenstockError("SINK_URI_INVALID", f"{mask_uri(uri)!r} is not a URI") from error
    folder = _FIRST if scheme == CONNECTION_SCHEME else schemes().get(scheme)
    if folder is None:
        known = ", ".join((*schemes(), CONNECTION_SCHEME))
        raise PenstockError(
            "SINK_URI_INVALID",
            f"scheme {scheme or 'none'!r} of {mask_uri(uri)!r} is not one of {known}{did_you_mean(scheme, schemes())}",
            _meant(uri, scheme),
        )
    return _kind(folder)


def settings_of(uri: str, options: Mapping[str, Any] | None = None) -> tuple[str, TargetSettings]:
    """Return the target's URI without options, and its settings; raise ``SINK_URI_INVALID`` or ``CONFIG_INVALID`` with every fault.

    Options for a connection are right where they are for one kind of target: which one it is, its server knows, and looks again.
    """
    kind = kind_of(uri)
    try:
        return kind.settings(uri, options or {})
    except PenstockError:
        if urlsplit(uri).scheme == CONNECTION_SCHEME:
            for scheme, folder in schemes().items():
                if folder != _FIRST and (found := _settings_as(scheme, uri, options or {})) is not None:
                    return uri, found
        raise


def open_sink(uri: str, options: Mapping[str, Any], guard: Guard | None, run: SinkRun = NO_RUN) -> Sink:
    """Return the sink of one task; without a guard where the task cannot ask who owns the feed."""
    return kind_of(uri).make_sink(uri, options, guard, run)


def open_maintainer(
    uri: str, options: Mapping[str, Any], guard: Guard, answer_s_max: float | None = None, run: SinkRun = NO_RUN
) -> SinkMaintainer:
    """Return the part of the target that acts once per feed; where somebody waits, a call to it ends soon after ``answer_s_max``."""
    return kind_of(uri).make_maintainer(uri, options, guard, run, answer_s_max)


def open_clean_up(uri: str, options: Mapping[str, Any], guard: Guard, clock: Clock) -> CleanUp | None:
    """Return what lets content of the target expire, or None where it is kept for ever."""
    return kind_of(uri).make_clean_up(uri, options, guard, clock)


def open_state(uri: str, options: Mapping[str, Any]) -> TargetState:
    """Return what reads a target back for a feed whose history is lost."""
    return kind_of(uri).make_state(uri, options)


def is_readable(uri: str) -> bool:
    """Return whether what a target holds can be read back, so that a feed finds what differs from it."""
    from penstock.sink.kind import TargetKind

    return type(kind_of(uri)).make_state is not TargetKind.make_state


def open_tables(uri: str, options: Mapping[str, Any]) -> TargetTables:
    """Return the tables of a target that holds such, for verification."""
    return kind_of(uri).make_tables(uri, options)


def check_target(uri: str, options: Mapping[str, Any] | None = None, feed: str | None = None) -> list[Finding]:
    """Return what a doctor finds of a target; ``feed`` is the name of the feed that is meant to deliver there."""
    from penstock.model.finding import Finding
    from penstock.settings.masking import mask_text

    try:
        settings_of(uri, options)
    except PenstockError as error:
        return [Finding("target", False, mask_text(error.detail), error.hint)]
    return kind_of(uri).check(uri, options or {}, feed)


def one_task(uri: str, options: Mapping[str, Any]) -> bool:
    """Return whether all rows of a window must go through one task, dispatcher by dispatcher, because each tells its place among them."""
    return settings_of(uri, options)[1].numbers_events


def ddls_end_windows(uri: str, options: Mapping[str, Any]) -> bool:
    """Return whether every DDL ends a window: rows of all tables are applied together, and none may wait inside for one of them."""
    return bool(getattr(settings_of(uri, options)[1], "applies_transactions", False))


def compares_tables(uri: str, options: Mapping[str, Any]) -> bool:
    """Return whether the target holds tables, so that all dispatchers of one are compared with it together."""
    return bool(getattr(settings_of(uri, options)[1], "holds_tables", False))


def before_rule(uri: str, options: Mapping[str, Any]) -> Callable[[TableSchema], bool]:
    """Return what tells of a table version whether its before-images and keys must travel to the target."""
    return settings_of(uri, options)[1].needs_before


def _meant(uri: str, scheme: str) -> str | None:
    """Return what helps whoever wrote a target without its scheme, or with a part of it."""
    if uri in schemes():
        return f"A target is a URI: write {uri}: and, where it has one, its place."
    longer = [known for known in schemes() if known.startswith(f"{scheme}+")]
    return f"Begin it with {' or '.join(f'{known}://' for known in longer)}" if longer and scheme else None


@cache
def _kind(folder: str) -> TargetKind:
    found: TargetKind = import_module(f"{_PACKAGE}.{folder}.kind").KIND
    return found


def _settings_as(scheme: str, uri: str, options: Mapping[str, Any]) -> TargetSettings | None:
    """Return the settings of a connection's options if it leads to a target of this scheme, or None where they are none."""
    try:
        return _kind(schemes()[scheme]).settings(f"{scheme}{uri.removeprefix(CONNECTION_SCHEME)}", options)[1]
    except PenstockError:
        return None
