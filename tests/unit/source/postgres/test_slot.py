import pytest

from penstock.model.errors import PenstockError
from penstock.source.postgres.slot import format_lsn, parse_lsn, record_end


def test_places_of_the_log():
    assert parse_lsn("16/B374D848@77") == 0x16B374D848
    assert format_lsn(0x16B374D848) == "16/B374D848"
    with pytest.raises(PenstockError, match="CONFIG_INVALID"):
        parse_lsn("binlog.1:4")
    page = 3 * 8192
    assert [record_end(n) for n in (page + 24, page + 25, (1 << 24) + 40, page + 40)] == [page, page + 25, 1 << 24, page + 40]
