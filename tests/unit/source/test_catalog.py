import contextlib
import socket

import pytest

from penstock.model.errors import PenstockError
from penstock.source.catalog import examine, open_upstream
from penstock.source.dataserver.client import parse_uri
from testing.servers.rogue import mysql_answers, postgres_answers, rogue


@pytest.mark.parametrize("uri", ["", "mssql://u:secret@h:1/d", "dataserver", "oracle://x"])
def test_unknown_schemes_name_the_field_and_what_is_supported(uri):
    with pytest.raises(PenstockError) as caught:
        open_upstream(uri)
    assert caught.value.code == "CONFIG_INVALID"
    assert "upstream:" in str(caught.value)
    assert "dataserver://" in str(caught.value)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    "uri", ["dataserver://", "dataserver://host", "dataserver://:1", "dataserver://h:x", "dataserver://h:99999", "dataserver://h:1/p"]
)
def test_malformed_addresses_are_refused(uri):
    with pytest.raises(PenstockError, match="dataserver://host:port"):
        open_upstream(uri)


def test_addresses():
    assert parse_uri("dataserver://localhost:7/") == "localhost:7"
    assert parse_uri("dataserver://[::1]:7") == "[::1]:7"


def test_nobody_answering_is_unreachable_with_the_address():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(PenstockError) as caught:
            open_upstream(f"dataserver://{address}")
    assert caught.value.code == "UPSTREAM_UNREACHABLE"
    assert address in str(caught.value)


@pytest.mark.parametrize("scheme", ["mysql", "mariadb", "postgresql", "dataserver", "other"])
@pytest.mark.parametrize("rest", ["u:S3cret@[/x", "u:S3cret/p@h:1", "u:S3cret@h:99999"])
def test_a_uri_that_cannot_be_read_is_an_error_of_the_user_and_not_shown(scheme, rest):
    for look in (open_upstream, lambda uri: examine(uri, ())):
        with pytest.raises(PenstockError, match="CONFIG_INVALID") as wrong:
            look(f"{scheme}://{rest}")
        assert "S3cret" not in f"{wrong.value} {wrong.value.hint}"


@pytest.mark.parametrize("row", [[None], [b"x", b"x"], [b"9" * 40] * 3, [b"-1"] * 8, [b""] * 2])
@pytest.mark.parametrize(("scheme", "answers"), [("mysql", mysql_answers), ("postgresql", postgres_answers)])
def test_whatever_a_server_answers_no_error_is_ours(scheme, answers, row):
    with rogue(answers(row)) as server:
        uri = f"{scheme}://cdc:pw@127.0.0.1:{server.port}/x"
        with contextlib.suppress(PenstockError):
            open_upstream(uri).close()
        with contextlib.suppress(PenstockError):
            assert any(not finding.ok for finding in examine(uri, ["a.b"]))
