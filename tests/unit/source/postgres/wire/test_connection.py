import pickle

from penstock.source.postgres.wire.connection import PostgresError, quote_ident, quote_literal, server_error


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
