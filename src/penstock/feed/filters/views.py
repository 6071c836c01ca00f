"""Views: a table version as the target of a feed sees it, and how its rows come about.

A view shows columns of the table as they are, byte by byte, and columns that Spark computes (``derived``), whose ids are above all ids
of upstreams. Invariant: a view is a function of the table version and of the feed's filter, so every attempt of a window has the same.
Where a table has no expressions no Spark is asked. Runs in the driver; views travel to executors.
"""

from __future__ import annotations

from typing import Protocol

import msgspec
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from penstock.feed.filters.rules import FilterRule, FilterSettings
from penstock.model.ddl import DdlEvent
from penstock.model.errors import PenstockError
from penstock.model.table import Column, TableSchema
from penstock.model.types import TypeKind

DERIVED_ID_MIN = 1_000_000
BROKEN = "FILTER_BROKEN"


class Derived(msgspec.Struct, frozen=True):
    """A column that Spark computes, and its place in the select list."""

    place: int
    column: Column


class TableView(msgspec.Struct, frozen=True):
    """A table version whose rows go through Spark: the upstream's, the target's, and what expressions read of it."""

    base: TableSchema
    shown: TableSchema
    needed: tuple[int, ...] = ()
    """The ids of the columns that expressions read."""
    derived: tuple[Derived, ...] = ()
    own_key: bool = False
    """Whether a row has another key in the target than upstream, so that an update that changes it is taken apart."""

    @property
    def read(self) -> TableSchema:
        """Return the table with nothing but the columns that expressions read."""
        return msgspec.structs.replace(self.base, columns=tuple(c for c in self.base.columns if c.id in self.needed), unique_keys=())


class Viewer(Protocol):
    """What asks Spark for views: ``row_queries.RowQueries``, as far as it is needed here."""

    def view(self, table: TableSchema, rule: FilterRule) -> TableView:
        """Return the view of a table version; raises ``FILTER_BROKEN`` where an expression does not fit it."""


class _NoViewer:
    """Stands where there is no Spark."""

    def view(self, table: TableSchema, rule: FilterRule) -> TableView:
        del rule
        raise PenstockError("CONFIG_INVALID", f"{table.full_name}: there is no Spark here that could evaluate its filter")


class FeedViews:
    """The views of one feed's tables, each made once. One thread."""

    def __init__(self, settings: FilterSettings, viewer: Viewer | None = None) -> None:
        self.settings = settings
        self._viewer: Viewer = viewer or _NoViewer()
        self._known: dict[tuple[int, int, str, str], TableView | PenstockError] = {}

    def sql_view(self, table: TableSchema) -> TableView | None:
        """Return the view of a table whose rows go through Spark; None where they do not. Raises ``FILTER_BROKEN``."""
        rule = self.settings.sql_rule(table.schema, table.table)
        if rule is None:
            return None
        key = (table.table_id, table.version, table.schema, table.table)
        if key not in self._known:
            try:
                self._known[key] = self._viewer.view(table, rule)
            except PenstockError as error:
                if error.code != BROKEN:
                    raise
                self._known[key] = error
        found = self._known[key]
        if isinstance(found, PenstockError):
            raise PenstockError(found.code, found.detail, found.hint)
        return found

    def shown(self, table: TableSchema) -> TableSchema:
        """Return a table version as the target sees it. Raises ``FILTER_BROKEN``."""
        view = self.sql_view(table)
        return self.settings.columns_shown(table) if view is None else view.shown

    def told(self, ddl: DdlEvent) -> DdlEvent | None:
        """Return what the target is told of a DDL; None where it is told nothing. Tables that it broke are left out."""
        if self.settings.is_empty:
            return ddl
        if not self.settings.tells(ddl):
            return None
        tables = []
        for table in ddl.tables:
            try:
                tables.append(self.shown(table))
            except PenstockError as error:
                if error.code != BROKEN:
                    raise
        return None if ddl.tables and not tables else msgspec.structs.replace(ddl, tables=tuple(tables))

    def problem(self, table: TableSchema) -> str:
        """Return why the rows of a table version cannot be filtered; empty where they can."""
        try:
            self.sql_view(table)
        except PenstockError as error:
            if error.code != BROKEN:
                raise
            return str(error)
        return ""


def stored_values(values: pa.Array, column: Column) -> pa.Array:
    """Return values that Spark computed as change batches hold them: canonical texts for what a machine type would bend."""
    kind, wanted = column.type.kind, column.type.arrow()
    if kind in (TypeKind.DECIMAL, TypeKind.DATE, TypeKind.DATETIME, TypeKind.TIMESTAMP):
        series = pl.Series(values)
        if kind is TypeKind.DECIMAL:
            texts = series.cast(pl.String)
        else:
            texts = series.dt.to_string("%Y-%m-%d" if kind is TypeKind.DATE else "%Y-%m-%d %H:%M:%S%.6f")
        return texts.to_arrow(compat_level=pl.CompatLevel.oldest()).cast(wanted)
    return values if values.type == wanted else pc.cast(values, wanted)
