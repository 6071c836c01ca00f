from __future__ import annotations

import struct

import numpy as np
import pytest

from penstock.model.errors import PenstockError
from penstock.source.mysql.gtid import MariadbGtids, MysqlGtids

SID = "3e11fa47-71ca-11e1-9e33-c80aa9429562"
OTHER = "4e11fa47-71ca-11e1-9e33-c80aa9429562"


def test_gtids_of_mariadb() -> None:
    one = MariadbGtids.parse("0-1-5, 7-2-9")
    assert str(one) == "0-1-5,7-2-9"
    later = one.advanced(np.array([0, -1, 0]), np.array([3, 0, 3]), np.array([6, 0, 7]))
    assert str(later) == "0-3-7,7-2-9"
    assert later.reached(one)
    assert not one.reached(later)
    assert one.reached(MariadbGtids.parse(""))


def test_gtids_of_mysql() -> None:
    one = MysqlGtids.parse(f"{SID}:1-5:7,\n{OTHER}:3")
    later = one.advanced([OTHER, SID], np.array([1, 1, 0, -1]), np.array([6, 8, 4, 0]))
    assert str(later) == f"{SID}:1-8,{OTHER}:3-4"
    assert later.reached(one)
    assert not one.reached(later)
    wire = MysqlGtids.parse(f"{SID}:1-5").to_wire()
    assert wire == struct.pack("<Q", 1) + bytes.fromhex(SID.replace("-", "")) + struct.pack("<QQQ", 1, 1, 6)
    with pytest.raises(PenstockError, match="tagged"):
        MysqlGtids.parse(f"{SID}:tag:1-5")
