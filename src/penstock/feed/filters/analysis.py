"""Asks Spark about the expressions of a filter: whether they fit a table version, what columns they give, and if always the same.

The statement is ``SELECT … FROM rows AS table [join] WHERE …``. Its analyzed plan must be one of single rows: nothing that groups, sorts,
numbers or multiplies them. Every expression must give the same whenever it is evaluated: Spark's own word (``deterministic``), and,
because Spark counts what it replaces by a constant for each query as deterministic, no function that takes no argument and is no constant,
and none that somebody registered. Invariant: nothing is executed here. Runs in the driver.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pyspark.errors import AnalysisException, ParseException, PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql import types as st

from penstock.feed.filters.cost import DEPTH_MAX, TooCostly, brackets_deep, check_cost
from penstock.feed.filters.query_task import CHECK, PLACE
from penstock.feed.filters.rules import FilterRule, FilterSettings
from penstock.feed.filters.views import BROKEN, DERIVED_ID_MIN, Derived, TableView
from penstock.feed.formats.typed_rows import typed_schema
from penstock.model.errors import PenstockError
from penstock.model.table import Column, TableSchema
from penstock.model.types import ColumnType, TypeKind

_SPINE = frozenset({"Project", "Filter", "Join", "SubqueryAlias"})
_JOINS = frozenset({"Inner", "LeftOuter", "LeftSemi", "LeftAnti", "Cross"})
_LEAVES = frozenset({"AttributeReference", "Literal", "OuterReference", "NamedLambdaVariable", "Pi", "EulerNumber", "ListQuery", "Exists"})
_SUBQUERIES = frozenset({"ScalarSubquery", "ListQuery", "Exists", "LateralSubquery"})
_OF_THE_MOMENT = re.compile(r"Current|Local(Timestamp|Time)|Now|UDF|Reflect|Rand|Uuid|AesEncrypt")
_MOMENTS = re.compile(r"\b(date|timestamp(_ntz|_ltz)?)\s*'\s*(now|today|tomorrow|yesterday)\b", re.IGNORECASE)
_SPECIAL = frozenset({"now", "today", "tomorrow", "yesterday"})
_PLACE_IN_TEXT = re.compile(r"\(?line (\d+),? pos(?:ition)? (\d+)\)?")
_numbers = itertools.count()

_KINDS: dict[type[st.DataType], ColumnType] = {
    st.BooleanType: ColumnType(TypeKind.TINYINT, length=1),
    st.ByteType: ColumnType(TypeKind.TINYINT),
    st.ShortType: ColumnType(TypeKind.SMALLINT),
    st.IntegerType: ColumnType(TypeKind.INT),
    st.LongType: ColumnType(TypeKind.BIGINT),
    st.FloatType: ColumnType(TypeKind.FLOAT),
    st.DoubleType: ColumnType(TypeKind.DOUBLE),
    st.StringType: ColumnType(TypeKind.LONGTEXT),
    st.BinaryType: ColumnType(TypeKind.LONGBLOB),
    st.DateType: ColumnType(TypeKind.DATE),
    st.TimestampNTZType: ColumnType(TypeKind.DATETIME, scale=6),
    st.TimestampType: ColumnType(TypeKind.TIMESTAMP, scale=6),
}


def rows_schema(table: TableSchema) -> st.StructType:
    """Return the schema of a table's typed rows, with what tells them apart behind the columns."""
    return typed_schema(table, with_ops=False).add(PLACE, st.LongType(), False).add(CHECK, st.LongType(), False)


def view_of(session: SparkSession, table: TableSchema, rule: FilterRule) -> TableView:
    """Return the view that a rule gives of a table version; raises ``FILTER_BROKEN`` that names field, place and expression."""
    for name in ("where", "select", "join"):
        found = _MOMENTS.search(getattr(rule, name))
        if found:
            raise _refused(table, rule, name, f"{found[0]}' is another moment whenever it is asked", found.start())
        if brackets_deep(getattr(rule, name)) > DEPTH_MAX:
            raise _refused(table, rule, name, f"its brackets are nested more than {DEPTH_MAX} deep")
    nothing = session.range(0).select(*(sf.lit(None).cast(f.dataType).alias(f.name) for f in rows_schema(table).fields))
    frame = query(nothing, table, rule)
    plan = frame._jdf.queryExecution().analyzed()
    spine = _spine(plan, table, rule)
    _check_cost(plan, table, rule)
    places = {int(a.exprId().id()): at for at, a in enumerate(_items(spine[-1].output()))}
    _check_repeatable(plan, table, rule)
    count = len(table.columns)
    named = _items(plan.projectList())[:-2]
    shown: list[Column] = []
    derived: list[Derived] = []
    read: set[int] = set()
    for at, (item, field) in enumerate(zip(named, frame.schema.fields[:-2], strict=True)):
        source = _passed(item, places)
        if source is not None and source >= count:
            continue
        if source is not None and table.columns[source].id not in {c.id for c in shown}:
            shown.append(_renamed(table.columns[source], field.name))
            continue
        read |= _read_by(item, places)
        column = Column(DERIVED_ID_MIN + len(derived) + 1, field.name, _column_type(field, table, rule))
        derived.append(Derived(at, column))
        shown.append(column)
    for node in spine[1:-1]:
        for expression in _items(node.expressions()):
            read |= _read_by(expression, places)
    seen = _shown_table(table, rule, shown)
    needed = tuple(table.columns[at].id for at in sorted(read) if at < count)
    return TableView(table, seen, needed, tuple(derived), own_key=bool(rule.key))


def query(rows: DataFrame, table: TableSchema, rule: FilterRule) -> DataFrame:
    """Return the frame that a rule makes of rows of ``rows_schema``: the select list, then place and check."""
    name = f"__penstock_rows_{next(_numbers)}"
    text = _Statement(table, rule, name)
    session = rows.sparkSession
    rows.createOrReplaceTempView(name)
    try:
        return session.sql(text.sql)
    except (ParseException, AnalysisException) as error:
        raise text.refused(error) from None
    except Exception as error:
        if "java.lang.StackOverflowError" not in str(error):
            raise
        raise _refused(table, rule, text.given, "it is nested too deeply") from None
    finally:
        session.catalog.dropTempView(name)


def derived_only(frame: DataFrame, view: TableView, *, with_check: bool) -> DataFrame:
    """Return place, check if asked and derived columns of what ``query`` gave: the other columns are taken from the rows themselves."""
    numbered = frame.toDF(*(f"_{at}" for at in range(len(frame.columns))))
    last = len(frame.columns)
    own = [sf.col(f"_{last - 2}"), *([sf.col(f"_{last - 1}")] if with_check else [])]
    return numbered.select(*own, *(sf.col(f"_{d.place}") for d in view.derived))


def keeps_rows_in_place(frame: DataFrame) -> bool:
    """Return whether Spark evaluates a frame row by row, so that its rows stay in their partitions and in order."""
    plan = frame._jdf.queryExecution().optimizedPlan()
    return all(node.nodeName() in {"Project", "Filter", "MapInArrow", "Range"} for node in _nodes(plan))


@dataclass(frozen=True)
class _Statement:
    """The statement of a rule: each field on lines of its own, so that a place in it is one in the field."""

    table: TableSchema
    rule: FilterRule
    rows: str

    @property
    def _parts(self) -> list[tuple[str, str]]:
        alias = "`" + self.table.table.replace("`", "``") + "`"
        parts = [("", "SELECT"), ("select", self.rule.select or f"{alias}.*")]
        parts += [("", f", {alias}.{PLACE}, {alias}.{CHECK} FROM {self.rows} AS {alias}"), ("join", self.rule.join)]
        return [*parts, ("", "WHERE"), ("where", self.rule.where)] if self.rule.where else parts

    @property
    def sql(self) -> str:
        """Return the text."""
        return "\n".join(text for _, text in self._parts)

    def refused(self, error: PySparkException) -> PenstockError:
        """Return the error with the place in the user's own text."""
        message = (error.getMessage() if hasattr(error, "getMessage") else str(error)) or str(error)
        place = _PLACE_IN_TEXT.search(str(error))
        words = re.sub(r"\s*SQLSTATE: \w+.*", "", _PLACE_IN_TEXT.sub("", message.splitlines()[0])).strip().rstrip(";,. ")
        words = words.replace(f"`{self.rows}`.", "")
        line = int(place[1]) if place else 0
        begin = 1
        for field, text in self._parts:
            height = text.count("\n") + 1
            if field and begin <= line < begin + height:
                at = sum(len(one) + 1 for one in text.splitlines()[: line - begin]) + int(place[2] if place else 0)
                return _refused(self.table, self.rule, field, words, at)
            begin += height
        return _refused(self.table, self.rule, self.given, words)

    @property
    def given(self) -> str:
        """Return the first field that there is."""
        return next((name for name in ("where", "select", "join") if getattr(self.rule, name)), "where")


def _refused(table: TableSchema, rule: FilterRule, field: str, words: str, at: int | None = None) -> PenstockError:
    text = getattr(rule, field)
    place = "" if at is None else f" at character {at + 1}"
    return PenstockError(BROKEN, f"{table.full_name}: {field}{place}: {words}; in {field} = {text!r}")


def _spine(plan: Any, table: TableSchema, rule: FilterRule) -> list[Any]:
    """Return the nodes from the plan's root to that of the table's rows; raise where it does anything but look at each of them."""
    node, found = plan, []
    while True:
        name = str(node.nodeName())
        found.append(node)
        if name == "SubqueryAlias":
            return found
        if name not in _SPINE:
            words = f"{name} makes other rows than those of the table; only conditions, expressions and joins of each row are allowed"
            raise _refused(table, rule, "select" if rule.select else "where", words)
        if name == "Join" and str(node.joinType().toString()) not in _JOINS:
            raise _refused(table, rule, "join", f"a join of the kind {node.joinType().toString()} gives rows that are not the table's")
        node = node.children().apply(0)


def _check_cost(plan: Any, table: TableSchema, rule: FilterRule) -> None:
    """Raise where an expression may take more memory or time than a row is worth."""
    for node in _nodes(plan):
        for top in _items(node.expressions()):
            try:
                check_cost(top)
            except TooCostly as error:
                field = next((name for name in ("where", "select", "join") if _names(rule, name, str(error))), "")
                given = [name for name in ("where", "select", "join") if getattr(rule, name)]
                raise _refused(table, rule, field or given[0], str(error)) from None


def _names(rule: FilterRule, field: str, words: str) -> bool:
    """Return whether a field has one of the functions that words speak of."""
    return any(re.search(rf"\b{re.escape(word)}\b", getattr(rule, field), re.IGNORECASE) for word in re.findall(r"\w+", words)[:6])


def _check_repeatable(plan: Any, table: TableSchema, rule: FilterRule) -> None:
    """Raise where a plan holds what need not give the same again."""
    for node in _nodes(plan):
        if "ScriptTransformation" in str(node.nodeName()) or "Python" in str(node.nodeName()):
            raise _refused(table, rule, "select", "programs are not run")
        for top in _items(node.expressions()):
            for expression in _expressions(top):
                why = _unsteady(expression)
                if why:
                    text = str(expression.sql())
                    fields = [name for name in ("where", "select", "join") if getattr(rule, name)]
                    called = text.partition("(")[0].strip().lower()
                    places = {name: getattr(rule, name).lower().find(called) for name in fields}
                    field = next((name for name in fields if places[name] >= 0), fields[0])
                    at = places[field] if places[field] >= 0 else None
                    raise _refused(table, rule, field, f"{text} {why}, and a replay must give the same bytes", at)
                if str(expression.nodeName()) in _SUBQUERIES:
                    _check_repeatable(expression.plan(), table, rule)


def _unsteady(expression: Any) -> str:
    name = str(expression.nodeName())
    children = _items(expression.children())
    if not children and not bool(expression.deterministic()):
        return "does not give the same each time"
    if _OF_THE_MOMENT.search(name) or (not children and name not in _LEAVES | _SUBQUERIES):
        return "depends on more than the row"
    if name == "Cast" and str(children[0].toString()).strip().lower() in _SPECIAL and "Literal" in str(children[0].nodeName()):
        return "is another moment whenever it is asked"
    deterministic = bool(expression.deterministic())
    return "" if deterministic or any(not bool(child.deterministic()) for child in children) else "does not give the same each time"


def _passed(item: Any, places: dict[int, int]) -> int | None:
    """Return the column that a select item passes on as it is, None where it is computed."""
    inner = item.child() if str(item.nodeName()) == "Alias" else item
    return places.get(int(inner.exprId().id())) if str(inner.nodeName()) == "AttributeReference" else None


def _read_by(top: Any, places: dict[int, int]) -> set[int]:
    found = set()
    for expression in _expressions(top):
        name = str(expression.nodeName())
        if name == "OuterReference":
            expression = expression.e()  # noqa: PLW2901 - the reference is to what is inside
        if str(expression.nodeName()) == "AttributeReference" and int(expression.exprId().id()) in places:
            found.add(places[int(expression.exprId().id())])
        if name in _SUBQUERIES:
            for node in _nodes(expression.plan()):
                for inner in _items(node.expressions()):
                    found |= _read_by(inner, places)
    return found


def _column_type(field: st.StructField, table: TableSchema, rule: FilterRule) -> ColumnType:
    if isinstance(field.dataType, st.DecimalType):
        return ColumnType(TypeKind.DECIMAL, length=field.dataType.precision, scale=field.dataType.scale)
    known = _KINDS.get(type(field.dataType))
    if known is None:
        words = f"column {field.name} is of type {field.dataType.simpleString()}, which no column holds; use to_json or cast it"
        raise _refused(table, rule, "select", words)
    return known


def _renamed(column: Column, name: str) -> Column:
    # Spark compares names without case and shows them as they are written.
    return column if column.name.lower() == name.lower() else _with_name(column, name)


def _with_name(column: Column, name: str) -> Column:
    return Column(
        column.id, name, column.type, column.nullable, column.primary_key, column.default, column.generated, column.initial_default
    )


def _shown_table(table: TableSchema, rule: FilterRule, shown: list[Column]) -> TableSchema:
    """Return the table as the target sees it; raise where its rows would have no key any more."""
    names = [c.name.lower() for c in shown]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice and rule.select:
        raise _refused(table, rule, "select", f"more than one column is called {', '.join(twice)}; use AS")
    kept = {c.id for c in shown}
    if rule.key:
        missing = [name for name in rule.key if name.lower() not in names]
        if missing:
            raise PenstockError(BROKEN, f"{table.full_name}: key: select gives no column {', '.join(missing)}")
        wanted = {name.lower() for name in rule.key}
        shown = [_keyed(c, is_key=c.name.lower() in wanted) for c in shown]
    elif missing := [c.name for c in table.handle_columns if c.id not in kept]:
        words = f"leaves out {', '.join(missing)} of the key; add what is missing, or say with key = [...] which columns name a row"
        raise _refused(table, rule, "select", words)
    unique = () if rule.key else tuple(key for key in table.unique_keys if set(key) <= kept)
    result = TableSchema(table.table_id, table.schema, table.table, table.version, tuple(shown), table.partition_id, unique)
    return FilterSettings(rules=(rule,)).columns_shown(result) if rule.columns else result


def _keyed(column: Column, *, is_key: bool) -> Column:
    return Column(column.id, column.name, column.type, column.nullable, is_key, column.default, column.generated, column.initial_default)


def _nodes(plan: Any) -> Iterator[Any]:
    yield plan
    for child in _items(plan.children()):
        yield from _nodes(child)


def _expressions(top: Any) -> Iterator[Any]:
    waiting = [top]
    while waiting:
        yield (one := waiting.pop())
        waiting += reversed(_items(one.children()))


def _items(seq: Any) -> list[Any]:
    return [seq.apply(at) for at in range(seq.length())]
