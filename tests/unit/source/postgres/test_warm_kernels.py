"""A source's kernels are compiled before its stream is open: while a compiler runs, nobody reads and the server gives up."""

import subprocess
import sys

_UNREACHABLE = """
import socket, threading
from penstock.model.errors import PenstockError
from penstock.source import folding
from penstock.source.postgres.rows import cells, row_changes
from penstock.source.postgres.upstream import PostgresUpstream
from penstock.source.postgres.wire import pgoutput
from penstock.source.single_log import LogPosition

with socket.create_server(("127.0.0.1", 0)) as taken:
    port = taken.getsockname()[1]
upstream = PostgresUpstream(f"postgresql://nobody@127.0.0.1:{port}/none")
kernels = (pgoutput.scan, cells._walk_tuples, cells._walk_copy, folding._arrange, row_changes._follow_instances)
print([len(k.signatures) for k in kernels])
try:
    next(iter(upstream.read_log(LogPosition(1, "0/1"), [], lambda table_id: True, threading.Event())))
except PenstockError as error:
    print(error.code, all(len(k.signatures) for k in kernels))
"""


def test_kernels_of_postgresql_are_there_before_a_server_is_asked() -> None:
    environment = {"PYTHONPATH": ":".join(filter(None, sys.path))}
    done = subprocess.run([sys.executable, "-c", _UNREACHABLE], capture_output=True, text=True, timeout=200, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["[0, 0, 0, 0, 0]", "UPSTREAM_UNREACHABLE True"]
