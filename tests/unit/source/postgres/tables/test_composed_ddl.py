from penstock.model.ddl import DdlType
from penstock.model.table import Column, TableSchema
from penstock.model.types import ColumnType, TypeKind
from penstock.source.postgres.tables.composed_ddl import compose_create, compose_ddl, compose_truncate

INT, TEXT = ColumnType(TypeKind.INT), ColumnType(TypeKind.LONGTEXT)


def table(version, columns, name="t", table_id=7):
    return TableSchema(table_id, "s", name, version, tuple(columns))


def test_statements_between_versions():
    a, b = Column(1, "a", INT, False, True), Column(2, "b", TEXT)
    first = table(1, [a, b])

    def between(after):
        event = compose_ddl(first, after)
        return event.type, event.query

    assert between(table(2, [a, b, Column(3, "c", INT, False, default="7")])) == (
        DdlType.ADD_COLUMN,
        "ALTER TABLE `s`.`t` ADD COLUMN `c` INT NOT NULL DEFAULT '7'",
    )
    assert between(table(2, [a])) == (DdlType.DROP_COLUMN, "ALTER TABLE `s`.`t` DROP COLUMN `b`")
    assert between(table(2, [a, Column(2, "x`y", TEXT)])) == (DdlType.MODIFY_COLUMN, "ALTER TABLE `s`.`t` RENAME COLUMN `b` TO `x``y`")
    assert between(table(2, [a, Column(2, "z", INT)])) == (DdlType.MODIFY_COLUMN, "ALTER TABLE `s`.`t` CHANGE COLUMN `b` `z` INT")
    assert between(table(2, [a, Column(3, "n", INT)]))[0] is DdlType.MULTI_SCHEMA_CHANGE
    assert "DROP PRIMARY KEY, ADD PRIMARY KEY (`b`)" in between(table(2, [Column(1, "a", INT), Column(2, "b", TEXT, False, True)]))[1]
    renamed = compose_ddl(first, table(2, [a, b], "u"))
    assert (renamed.type, renamed.old_names) == (DdlType.RENAME_TABLE, ((7, "s", "t"),))
    assert compose_create(first, 9).query == "CREATE TABLE `s`.`t` (`a` INT NOT NULL, `b` LONGTEXT, PRIMARY KEY (`a`))"
    assert compose_truncate(first, table(2, [a, b], table_id=8)).dropped_table_ids == (7,)
