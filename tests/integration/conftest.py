"""A PostgreSQL server for a module, and its upstream for a test, which leaves the server empty."""

import pytest

from penstock.model.clock import SystemClock
from penstock.source.postgres.slot import release_slot
from testing.servers.databases.postgres_lab import PostgresLab

SLOT_FREE_S = 120.0


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    lab = PostgresLab(tmp_path_factory.mktemp("postgres"))
    lab.sql("CREATE SCHEMA shop")
    try:
        yield lab
    finally:
        lab.stop()


@pytest.fixture
def upstream(lab, request):
    upstream = lab.upstream(f"?slot={request.node.name.split('[')[0][-50:].lower()}")
    yield upstream
    upstream.close()
    lab.sql("DROP SCHEMA shop CASCADE; CREATE SCHEMA shop")
    release_slot(upstream.address, SystemClock(), SLOT_FREE_S)
