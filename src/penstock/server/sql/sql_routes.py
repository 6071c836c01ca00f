"""The part of the HTTP API that takes SQL: one statement a call.

``GET`` is for statements that only read, which the role ``read`` may; ``POST`` takes every statement, which needs an operator. So roles go
by method and path here as everywhere. Runs in the server.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from fastapi import Body, FastAPI, Query, Request

from penstock.model.errors import PenstockError
from penstock.server.http.bodies import checked_tree
from penstock.server.http.call_pool import CallPool
from penstock.server.http.guard import caller_name
from penstock.server.sql.execution import SqlDesk
from penstock.server.sql.parser import parse
from penstock.server.sql.statements import Statement

SQL_PATH = "/api/v1/sql"
STATEMENTS_AT_ONCE, STATEMENTS_WAITING_MAX = 4, 32
_READ_CHARS_MAX = 4_096


def add_sql_routes(app: FastAPI, desk: SqlDesk) -> None:
    """Add the routes."""
    quick, slow = (CallPool(f"{what} SQL", STATEMENTS_AT_ONCE, STATEMENTS_WAITING_MAX) for what in ("read by", "execute"))

    async def read(text: str) -> Statement:
        # A long text takes its time, in which nobody else would be answered.
        return await quick.run(lambda: parse(text))

    async def run(statement: Statement, text: str, by: str) -> dict[str, Any]:
        pool = slow if statement.waits else quick
        outcome: dict[str, Any] = msgspec.to_builtins(await pool.run(lambda: desk.execute(statement, text, by)))
        return outcome

    @app.get(SQL_PATH)
    async def read_by_sql(request: Request, text: Annotated[str, Query(max_length=_READ_CHARS_MAX)]) -> dict[str, Any]:
        statement = await read(text)
        if not statement.reads:
            raise PenstockError("API_FORBIDDEN", f"{statement.title} does not only read", f"Send it with POST {SQL_PATH}, as an operator.")
        return await run(statement, text, caller_name(request.scope))

    @app.post(SQL_PATH)
    async def execute_sql(request: Request, body: Annotated[dict[str, Any], Body()]) -> dict[str, Any]:
        text = checked_tree(body).get("text")
        if not isinstance(text, str) or set(body) != {"text"}:
            raise PenstockError("CONFIG_INVALID", "the body has one field, text, which is a statement")
        return await run(await read(text), text, caller_name(request.scope))
