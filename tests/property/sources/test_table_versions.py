"""Names and identities over any DDLs: wherever the log is read again from, by this process or the next, the tables of that place live."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.ddl.statement import parse_statement
from penstock.model.table import TableSchema
from penstock.source.mysql.tables.columns import ServerTable
from penstock.source.mysql.tables.ddl_columns import created_columns
from penstock.source.mysql.tables.table_versions import TableVersions, Told

NAMES = tuple((schema, table) for schema in ("x", "y") for table in ("a", "b", "c"))
FIRST_TS, STEP_TS = 100, 10
names = st.sampled_from(NAMES)
actions = st.one_of(
    st.tuples(st.just("create"), names, st.integers(1, 3)),
    st.tuples(st.just("replace"), names, st.integers(1, 3)),
    st.tuples(st.just("again"), names, st.integers(1, 3)),
    st.tuples(st.just("drop"), names, names),
    st.tuples(st.just("truncate"), names, st.none()),
    st.tuples(st.just("rename"), names, names),
    st.tuples(st.just("swap"), names, names),
    st.tuples(st.just("add"), names, st.none()),
    st.tuples(st.just("database"), st.sampled_from(("x", "y")), st.none()),
)


class Model:
    """The obvious server: names to (identity, columns); what it would refuse is not in the log."""

    def __init__(self) -> None:
        self.tables: dict[tuple[str, str], tuple[int, int]] = {}
        self._made = 0

    def new(self, columns: int) -> tuple[int, int]:
        self._made += 1
        return self._made, columns

    def run(self, action: tuple) -> str | None:  # noqa: C901, PLR0911, PLR0912 - one branch per statement
        kind, one, two = action
        tables = self.tables
        if kind == "database":
            gone = [n for n in tables if n[0] == one]
            for name in gone:
                del tables[name]
            return f"drop database {one}"
        text = ".".join(one)
        if kind in {"create", "replace", "again"}:
            if kind == "create" and one in tables:
                return None
            if kind != "again" or one not in tables:
                tables[one] = self.new(two)
            head = {"create": "create table", "replace": "create or replace table", "again": "create table if not exists"}[kind]
            return f"{head} {text}(id int primary key{''.join(f', c{n} int' for n in range(2, two + 1))})"
        if one not in tables:
            return None
        if kind == "drop":
            for name in {one, two} & tables.keys():
                del tables[name]
            return f"drop table if exists {text}, {'.'.join(two)}"
        if kind == "truncate":
            tables[one] = self.new(tables[one][1])
            return f"truncate table {text}"
        if kind == "add":
            identity, columns = tables[one]
            tables[one] = identity, columns + 1
            return f"alter table {text} add column c{columns + 1} int"
        if kind == "rename":
            if two in tables:
                return None
            tables[two] = tables.pop(one)
            return f"rename table {text} to {'.'.join(two)}"
        if two not in tables or one == two:
            return None
        tables[one], tables[two] = tables[two], tables[one]
        return f"rename table {text} to x.tmp, {'.'.join(two)} to {text}, x.tmp to {'.'.join(two)}"


def shape(tables: TableVersions) -> dict[tuple[str, str], tuple[int, int]]:
    return {(t.schema, t.table): (t.table_id, len(t.columns)) for t in tables.list()}


def renamed(found: dict[tuple[str, str], tuple[int, int]], identities: dict[int, int]) -> dict[tuple[str, str], tuple[int, int]]:
    """Return tables with the model's identities in the place of ids; each id is of one identity, for ever."""
    return {name: (identities[number], columns) for name, (number, columns) in found.items()}


def apply(tables: TableVersions, text: str, ts: int) -> Told:
    statement = parse_statement(text, "x")
    assert statement is not None
    return tables.apply(statement, text, ts, lambda: False)


@settings(max_examples=300, deadline=None)
@given(st.lists(actions, max_size=14), st.lists(actions, max_size=4), st.integers(0, 100), st.integers(0, 100), st.booleans())
def test_tables_that_lived_at_a_place_live_there_again(before: list, first: list, pick: int, stop: int, restart: bool) -> None:
    model, server = Model(), Model()
    for action in first:
        server.run(action)
    model.tables, model._made = dict(server.tables), server._made
    shown = [ServerTable(*name, created_columns(_text(columns)), ("",) * columns) for name, (_, columns) in server.tables.items()]
    tables = TableVersions(lambda schema, table: None)
    tables.load(shown, FIRST_TS)
    kept: list[TableSchema] = list(tables.list())
    identities = {number: server.tables[name][0] for name, (number, _) in shape(tables).items()}
    log, lived, told = [], [(FIRST_TS, dict(model.tables))], []
    for action in before:
        text = model.run(action)
        if text is None:
            continue
        ts = FIRST_TS + STEP_TS * (len(log) + 1)
        log.append((text, ts))
        told.append(apply(tables, text, ts))
        kept += [*told[-1].ended, *(told[-1].event.tables if told[-1].event is not None else ())]
        for name, (number, _) in shape(tables).items():
            assert identities.setdefault(number, model.tables[name][0]) == model.tables[name][0]
        assert renamed(shape(tables), identities) == model.tables
        lived.append((ts, dict(model.tables)))
    # A restart anywhere: what was read up to a place is in the journal, and the log is read again from one before it.
    read = stop % len(lived)
    if restart:
        tables = TableVersions(lambda schema, table: None)
        tables.adopt([v for v in kept if v.version <= lived[read][0]])
        begin = pick % (read + 1)
    else:
        begin = pick % len(lived)
    tables.rewind(lived[begin][0])
    assert renamed(shape(tables), identities) == lived[begin][1]
    for (text, ts), expected, (_, now) in zip(log[begin:], told[begin:], lived[begin + 1 :], strict=True):
        again = apply(tables, text, ts)
        assert (again.event, again.ended) == (expected.event, expected.ended)
        assert renamed(shape(tables), identities) == now


def _text(columns: int) -> str:
    return f"create table t(id int primary key{''.join(f', c{n} int' for n in range(2, columns + 1))})"


def test_a_table_made_while_nobody_read_the_log_gives_its_event() -> None:
    made = created_columns(_text(2))
    shown = [ServerTable("x", "a", made, ("", "")), ServerTable("x", "b", made, ("", ""))]
    first = TableVersions(lambda schema, table: shown[0])
    first.load(shown[:1], FIRST_TS)
    again = TableVersions(lambda schema, table: shown[1])
    again.adopt(first.list())
    again.rewind(FIRST_TS)
    assert [t.table for t in again.list()] == ["a"]
    event = apply(again, "create table x.b(id int primary key, c2 int)", FIRST_TS + 1).event
    assert event is not None
    assert [t.full_name for t in event.tables] == ["x.b"]


def test_a_journal_without_ends_still_gives_each_name_to_one_table() -> None:
    made = created_columns(_text(1))
    versions = [TableSchema(n, "x", "a", 10 * n, made) for n in (1, 2, 3)]
    tables = TableVersions(lambda schema, table: None)
    tables.adopt(versions)
    for ts, expected in ((10, 1), (19, 1), (20, 2), (35, 3)):
        tables.rewind(ts)
        assert [t.table_id for t in tables.list()] == [expected]


def test_a_rename_across_databases_says_from_where() -> None:
    tables = TableVersions(lambda schema, table: None)
    apply(tables, "create table a(id int primary key)", 10)
    statement = parse_statement("rename table a to y.b", "x")
    told = tables.apply(statement, "rename table a to y.b", 20, lambda: False)
    assert told.event.query == "RENAME TABLE `x`.`a` TO `y`.`b`"
    assert told.event.old_names == ((told.event.tables[0].table_id, "x", "a"),)


def test_a_server_that_calls_tables_in_lower_case_knows_them_however_they_are_written() -> None:
    tables = TableVersions(lambda schema, table: None, lower_case=True)
    statements = {
        "CREATE TABLE X.Aa (id INT PRIMARY KEY)": None,
        "ALTER TABLE aA ADD COLUMN Cc INT": "ALTER TABLE aA ADD COLUMN Cc INT",
        "RENAME TABLE AA TO Bb": "RENAME TABLE `x`.`aa` TO `x`.`bb`",
        "CREATE TABLE Aa LIKE BB": None,
        "TRUNCATE TABLE BB": "TRUNCATE TABLE `x`.`bb`",
        "DROP TABLE AA": "DROP TABLE IF EXISTS `x`.`aa`",
    }
    for at, (text, said) in enumerate(statements.items()):
        told = apply(tables, text, FIRST_TS + at)
        assert told.event is not None, text
        assert said is None or told.event.query == said
    assert [(t.full_name, [c.name for c in t.columns]) for t in tables.list()] == [("x.bb", ["id", "Cc"])]
    assert [t.table for t in tables.named(["INSERT", "INTO", "`BB`"], "X")] == ["bb"]
