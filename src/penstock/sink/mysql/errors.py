"""What the errors of a MySQL or MariaDB server mean to a feed, decided by their codes. Runs on executors and beside the driver.

Invariant: what is not surely permanent is tried again; no text has a password.
"""

from __future__ import annotations

import re

from penstock.access.mysql_server import ServerAddress
from penstock.model.errors import PenstockError

_FULL = frozenset({1021, 1114, 3, 28, 1041, 3675})
"""Disk full, table full, no memory."""
_REFUSED = frozenset({1044, 1045, 1142, 1143, 1227, 1049, 1370, 1396, 1698, 1820, 1862, 3118, 4151})
"""Who may not log in, or not do this. A server that is read-only may be one that takes over, and is asked again."""
_VALUES = frozenset({1048, 1264, 1265, 1292, 1366, 1367, 1406, 1416, 3140, 3141, 4025, 1690, 1411, 1441, 3819, 3156, 1364, 1300, 4078})
"""A value that does not fit its column, or that a constraint of the table refuses."""
_STRUCTURE = frozenset(
    {
        1054,
        1064,
        1071,
        1074,
        1075,
        1101,
        1103,
        1113,
        1117,
        1118,
        1146,
        1906,
        3105,
        1059,
        1102,
        1166,
        1170,
        1050,
        1060,
        1061,
        1068,
        1069,
        1091,
        1235,
        1267,
        3854,
    }
)
_KEYLESS = frozenset({1173, 3750})
"""A server that takes no table without a primary key."""
_COLUMN = re.compile(r"(?:for column |^Column |^Field )((?:`[^`]*`\.)*`[^`]*`|'[^']*')")
"""How the server names a column; of several places the last is its own, behind what it shows of the value."""
_NUMBERED = "Make the table beforehand, with a BIGINT AUTO_INCREMENT PRIMARY KEY beside its columns."
_CROWDED = frozenset({1040, 1203, 1226})
"""A server, or a user of it, that has as many connections as it may."""
_FEWER = "Let connections and lanes of the sink be less, or raise the limit of the server or its user."
_DUPLICATE = frozenset({1062, 1586, 1022, 1169})
_FOREIGN = frozenset({1216, 1217, 1451, 1452})


def failure(error: BaseException, address: ServerAddress) -> PenstockError:
    """Return an error of the driver as one of ours."""
    code = error.args[0] if error.args and isinstance(error.args[0], int) else 0
    text = str(error.args[1] if len(error.args) > 1 else error).strip() or type(error).__name__
    text = text.splitlines()[0][:300]
    if address.password:
        text = text.replace(address.password, "***")
    what = f"{address.shown}: {text} ({code})" if code else f"{address.shown}: {text}"
    if code in _FULL:
        return PenstockError("SINK_FULL", what)
    if code in _VALUES:
        # The server shows the value itself, which is not to stand in logs.
        named = _COLUMN.findall(text)
        column = f" of column {named[-1]}" if named else ""
        return PenstockError("SINK_VALUE_REFUSED", f"{address.shown}: the server refuses a value{column}, error {code}")
    if code in _DUPLICATE:
        return PenstockError("SINK_UNAVAILABLE", f"{address.shown}: another row holds a value of a unique key, error {code}")
    if code in _FOREIGN:
        return PenstockError("SINK_UNWRITABLE", f"{address.shown}: a foreign key refuses a change, error {code}")
    if code in _REFUSED | _STRUCTURE | _KEYLESS:
        return PenstockError("SINK_UNWRITABLE", what, _NUMBERED if code in _KEYLESS else None)
    return PenstockError("SINK_UNAVAILABLE", what, _FEWER if code in _CROWDED else None)
