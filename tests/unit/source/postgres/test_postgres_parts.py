"""The parts of the PostgreSQL source that need no server."""

import base64
import hashlib
import hmac
import pickle

import pytest

from penstock.model.ddl import DdlType
from penstock.model.errors import PenstockError
from penstock.model.table import Column, TableSchema
from penstock.model.types import ColumnType, TypeKind
from penstock.source.postgres.commit_log import CommitLog
from penstock.source.postgres.rows.cells import CellForm
from penstock.source.postgres.rows.type_map import Domain, column_type, default_text
from penstock.source.postgres.slot import format_lsn, parse_lsn, record_end
from penstock.source.postgres.tables.catalog import CatalogColumn, CatalogTable
from penstock.source.postgres.tables.composed_ddl import compose_create, compose_ddl, compose_truncate
from penstock.source.postgres.tables.schema_book import OID_BITS, SchemaBook
from penstock.source.postgres.tables.versions import base_version
from penstock.source.postgres.wire.address import parse_address
from penstock.source.postgres.wire.connection import PostgresError, quote_ident, quote_literal, server_error
from penstock.source.postgres.wire.pgoutput import Relation, RelationColumn
from penstock.source.postgres.wire.scram import ScramClient, md5_response
from penstock.source.single_log import LogPosition

INT, TEXT = ColumnType(TypeKind.INT), ColumnType(TypeKind.LONGTEXT)


def test_an_address_is_read_whole_and_hides_its_password():
    address = parse_address("postgresql://me:p%40ss@db.example:6000/shop?slot=mine&publication=all&sslmode=verify-full&streaming=on")
    assert (address.host, address.port, address.user, address.password, address.database) == ("db.example", 6000, "me", "p@ss", "shop")
    assert (address.slot, address.publication, address.sslmode, address.streaming) == ("mine", "all", "verify-full", True)
    assert "p@ss" not in repr(address)
    assert "p@ss" not in address.shown
    assert parse_address("postgres://me@db").port == 5432
    assert parse_address("postgres://me@db").database == "me"


@pytest.mark.parametrize(
    ("uri", "problem"),
    [
        ("mysql://me@db/x", "must begin with postgresql://"),
        ("postgresql://db/x", "must name a user"),
        ("postgresql://me@db:70000/x", "no valid port"),
        ("postgresql://me@db/x?colour=red", "unknown option colour"),
        ("postgresql://me@db/x?sslmode=maybe", "sslmode must be"),
        ("postgresql://me@db/x?slot=Mine", "slot must be"),
        ("postgresql://me@db/x?streaming=1", "streaming must be"),
        ("postgresql://me@db/x?connect_timeout=soon", "connect_timeout must be"),
    ],
)
def test_a_wrong_address_is_named(uri, problem):
    with pytest.raises(PenstockError, match=f"CONFIG_INVALID.*{problem}"):
        parse_address(uri)


def test_scram_by_the_example_of_rfc_7677():
    client = ScramClient("pencil", "rOprNGfwEbeRWgbNEkqO")
    assert client.first() == b"n,,n=,r=rOprNGfwEbeRWgbNEkqO"
    # The RFC's exchange names a user, which PostgreSQL leaves empty; the salt and the nonce are the RFC's.
    first = b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
    final = client.final(first)
    bare, _, proof = final.partition(b",p=")
    assert bare == b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
    # What a server that keeps the stored key computes.
    salted = hashlib.pbkdf2_hmac("sha256", b"pencil", base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ=="), 4096)
    signed = b"n=,r=rOprNGfwEbeRWgbNEkqO," + first + b"," + bare
    stored = hashlib.sha256(hmac.digest(salted, b"Client Key", "sha256")).digest()
    key = bytes(a ^ b for a, b in zip(base64.b64decode(proof), hmac.digest(stored, signed, "sha256"), strict=True))
    assert hashlib.sha256(key).digest() == stored
    client.verify(b"v=" + base64.b64encode(hmac.digest(hmac.digest(salted, b"Server Key", "sha256"), signed, "sha256")))
    with pytest.raises(PenstockError, match="could not prove"):
        client.verify(b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=")


@pytest.mark.parametrize("challenge", [b"r=other,s=QQ==,i=1", b"r=abc,s=QQ==,i=1", b"r=abcd,s=QQ==,i=x", b"r=abcd,s=QQ==,i=999999999", b""])
def test_a_challenge_that_is_none_is_refused(challenge):
    with pytest.raises(PenstockError, match="UPSTREAM_REFUSED"):
        ScramClient("pw", "abc").final(challenge)


def test_md5_answers_as_the_server_expects():
    inner = hashlib.md5(b"secretme").hexdigest().encode()
    assert md5_response("me", "secret", b"salt") == "md5" + hashlib.md5(inner + b"salt").hexdigest()


def test_errors_by_what_the_caller_does():
    def error(state):
        return server_error("db", b"SERROR\0C" + state.encode() + b"\0Mno\0Hdo this\0\0")

    assert [error(s).code for s in ("57P01", "53300", "55006", "40P01", "58P01", "28P01", "42501")] == [
        *(["UPSTREAM_UNREACHABLE"] * 4),
        *("LOG_PURGED", "UPSTREAM_REFUSED", "UPSTREAM_REFUSED"),
    ]
    copied = pickle.loads(pickle.dumps(error("57P01")))
    assert isinstance(copied, PostgresError)
    assert (copied.sqlstate, copied.hint, str(copied)) == ("57P01", "do this", "[UPSTREAM_UNREACHABLE] db: no (SQLSTATE 57P01)")


def test_names_and_texts_in_sql():
    assert quote_ident('a"b') == '"a""b"'
    assert quote_literal("it's") == "'it''s'"
    assert quote_literal("a\\b'") == " E'a\\\\b'''"


def test_places_of_the_log():
    assert parse_lsn("16/B374D848@77") == 0x16B374D848
    assert format_lsn(0x16B374D848) == "16/B374D848"
    with pytest.raises(PenstockError, match="CONFIG_INVALID"):
        parse_lsn("binlog.1:4")
    page = 3 * 8192
    assert [record_end(n) for n in (page + 24, page + 25, (1 << 24) + 40, page + 40)] == [page, page + 25, 1 << 24, page + 40]


def test_types_with_their_sizes():
    domains = {20_000: Domain(1700, ((9 << 16) | 2) + 4), 20_001: Domain(20_000, -1)}
    assert column_type(20_001, -1, domains)[0] == ColumnType(TypeKind.DECIMAL, length=9, scale=2)
    assert column_type(1043, 24, {})[0] == ColumnType(TypeKind.VARCHAR, length=20)
    assert column_type(1043, -1, {})[0] == TEXT
    assert column_type(1042, 404, {})[0] == TEXT
    assert column_type(1184, 3, {}) == (ColumnType(TypeKind.TIMESTAMP, scale=3), CellForm.UTC)
    assert column_type(1700, ((70 << 16) | 2) + 4, {})[0] == TEXT
    assert column_type(1700, ((3 << 16) | 0x7FE) + 4, {})[0] == TEXT
    assert column_type(99_999, -1, {}) == (TEXT, CellForm.TEXT)


@pytest.mark.parametrize(
    ("expression", "text"),
    [
        ("'x'::text", "x"),
        ("'it''s'::character varying(20)", "it's"),
        ("7", "7"),
        ("'-1.50'::numeric(8,2)", "-1.50"),
        ("('a'::text)::character varying", "a"),
        ("true", "1"),
        ("now()", None),
        ("nextval('s'::regclass)", None),
        ("'a'::text || 'b'::text", None),
        ("NULL::character varying", None),
        (None, None),
    ],
)
def test_defaults_that_are_constants(expression, text):
    assert default_text(expression, TEXT) == text


def test_a_boolean_default_is_a_number():
    assert default_text("'t'::boolean", ColumnType(TypeKind.TINYINT, length=1)) == "1"


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


class Catalog:
    """A catalog that tests change."""

    def __init__(self, *names, identity="d"):
        self.set(*names)
        self.identity = identity

    def set(self, *names, ids=None):
        numbers = ids or range(1, len(names) + 1)
        self.columns = [
            CatalogColumn(Column(i, n, INT, i != 1, i == 1), CellForm.INTEGER, 23, "pg_catalog", "int4", False)
            for i, n in zip(numbers, names, strict=True)
        ]

    def read(self, _oids):
        return [CatalogTable(7, "s", "t", self.identity, tuple(self.columns))]

    def book(self):
        return SchemaBook(self.read, dict)

    def observe(self, book, ts):
        told = book.observe(self.relation(), ts, self.read(None)[0])
        return told.known, told.ddls[0] if told.ddls else None

    def relation(self, name="t"):
        shown = tuple(RelationColumn(c.column.name, 23, -1, c.column.primary_key) for c in self.columns)
        return Relation(7, "s", name, self.identity, shown)


def test_a_base_version_depends_on_the_content_alone_and_lies_below_every_commit():
    one, two = Catalog("id", "v"), Catalog("id", "w")
    assert base_version(one.read(None)[0]) == base_version(Catalog("id", "v").read(None)[0])
    assert base_version(one.read(None)[0]).version != base_version(two.read(None)[0]).version
    assert base_version(one.read(None)[0]).version < 1 << 32


def test_versions_follow_relations_and_are_found_again():
    catalog = Catalog("id", "v")
    book = catalog.book()
    ts = 1 << 50
    known, ddl = catalog.observe(book, ts)
    assert ddl is None
    catalog.set("id", "v", "w", ids=(1, 2, 4))
    newer, ddl = catalog.observe(book, ts + 100)
    assert ddl is not None
    assert [c.id for c in newer.table.columns] == [1, 2, 4]
    assert ts < newer.table.version == ddl.commit_ts < ts + 100
    assert catalog.observe(book, ts + 100)[1] == ddl, "read again, the DDL is told again"
    assert catalog.observe(book, ts + 200)[1] is None
    catalog.set("id", "w2", ids=(1, 4))
    third, ddl = catalog.observe(book, ts + 300)
    assert [(c.id, c.name) for c in third.table.columns] == [(1, "id"), (4, "w2")]
    assert ddl is not None
    other = catalog.book()
    other.adopt(book.versions(7))
    catalog.set("id", "v")
    assert catalog.observe(other, ts)[0] == known, "an older place of the log has the older version"
    assert [v.version for v in other.versions(7)] == [v.version for v in book.versions(7)]


def test_several_changes_in_one_transaction_have_a_slot_each():
    catalog = Catalog("id", "v")
    book = catalog.book()
    ts = 1 << 50
    catalog.observe(book, ts)
    seen = []
    for number in range(7):
        catalog.set("id", f"v{number}")
        seen.append(catalog.observe(book, ts + 8)[1].commit_ts)
    assert seen == list(range(ts + 1, ts + 8))
    catalog.set("id", "one_too_many")
    with pytest.raises(PenstockError, match="DDL_UNSUPPORTED"):
        catalog.observe(book, ts + 8)


def test_each_truncate_is_a_generation():
    catalog = Catalog("id")
    book = catalog.book()
    ts = 1 << 50
    catalog.observe(book, ts)
    first = book.truncate(7, ts + 100)
    assert book.truncate(7, ts + 100) == first
    second = book.truncate(7, ts + 200)
    assert [e.tables[0].table_id for e in (first, second)] == [7 + (1 << OID_BITS), 7 + (2 << OID_BITS)]
    assert [book.table_id(7, t) for t in (ts, ts + 100, ts + 150, ts + 200)] == [
        7,
        *(first.tables[0].table_id,) * 2,
        second.tables[0].table_id,
    ]


def test_a_table_that_is_made_is_told_once_and_only_then():
    catalog = Catalog("id")
    book = catalog.book()
    (shown,) = catalog.read(None)
    created = book.create(catalog.relation(), 1 << 50, shown)
    assert created is not None
    (event,) = created.ddls
    assert (event.type, event.tables[0].version) == (DdlType.CREATE_TABLE, event.commit_ts)
    assert book.create(catalog.relation(), 1 << 50, shown) == created, "read again, it is told again"
    assert book.create(catalog.relation(), (1 << 50) + 100, shown) is None
    known = catalog.book()
    known.announce([7])
    assert known.create(catalog.relation(), 1 << 50, shown) is None


def test_a_capture_that_begins_takes_the_catalog_as_it_is_then():
    catalog = Catalog("id", "v")
    book = catalog.book()
    book.versions(7)
    catalog.set("id", "w")
    book.begin_capture(catalog.read(None)[0], 1 << 50, again=False)
    assert [v.columns[-1].name for v in book.versions(7)] == ["v", "w"]
    catalog.set("id", "x")
    book.begin_capture(catalog.read(None)[0], 1 << 51, again=False)
    assert len(book.versions(7)) == 2, "a table that was captured before changes in the log"
    book.begin_capture(catalog.read(None)[0], 1 << 51, again=True)
    assert book.versions(7)[-1].version == 1 << 51


def test_the_ts_of_recent_places():
    import numpy as np

    log = CommitLog(entries_max=2)
    assert log.ts_at(5, 0) is None
    log.begin(LogPosition(10, "0/5"))
    assert log.ts_at(5, 0) == 10
    log.add(np.array([20, 30]), np.array([100, 200], dtype=np.uint64))
    assert [log.ts_at(n, 0) for n in (19, 20, 29, 30, 31)] == [10, 100, 100, 200, None]
    log.add(np.array([40]), np.array([300], dtype=np.uint64))
    log.add(np.array([50]), np.array([400], dtype=np.uint64))
    assert [log.ts_at(n, 0) for n in (20, 30, 45, 50)] == [None, 200, 300, 400]
    assert log.last_ts() == 400
    log.end()
    assert log.ts_at(50, 0) is None
