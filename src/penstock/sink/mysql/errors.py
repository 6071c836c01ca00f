"""What the errors of a MySQL or MariaDB server mean to a feed, decided by their codes. Runs on executors and beside the driver.

Invariant: what is not surely permanent is tried again; no text has a password.
"""

from __future__ import annotations

from penstock.access.mysql_server import ServerAddress
from penstock.model.errors import PenstockError

_FULL = frozenset({1021, 1114, 3, 28, 1041, 3675})
"""Disk full, table full, no memory."""
_REFUSED = frozenset({1044, 1045, 1142, 1143, 1227, 1049, 1698, 1290, 1370, 1396, 4151, 3118, 1820, 1862})
"""Who may not log in, or not do this; a database that is not there; a server that is read-only stays retried (1290 by an option is not)."""
_VALUES = frozenset({1048, 1264, 1265, 1292, 1366, 1367, 1406, 1416, 3140, 3141, 4025, 1690, 1411, 1441, 3819, 3156, 1364, 1300, 4078})
"""A value that does not fit its column, or that a constraint of the table refuses."""
_STRUCTURE = frozenset({1054, 1064, 1071, 1074, 1075, 1101, 1103, 1113, 1117, 1118, 1146, 1170, 1050, 1060, 1061, 1068, 1069, 1091, 1235})
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
        return PenstockError("SINK_VALUE_REFUSED", f"{address.shown}: the server refuses a value, error {code}")
    if code in _DUPLICATE:
        return PenstockError("SINK_UNAVAILABLE", f"{address.shown}: another row holds a value of a unique key, error {code}")
    if code in _FOREIGN:
        return PenstockError("SINK_UNWRITABLE", f"{address.shown}: a foreign key refuses a change, error {code}")
    if code in _REFUSED or code in _STRUCTURE:
        return PenstockError("SINK_UNWRITABLE", what)
    return PenstockError("SINK_UNAVAILABLE", what)
