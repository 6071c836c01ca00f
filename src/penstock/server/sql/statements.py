"""Statements about feeds, as the parser gives them.

Invariant: a statement that changes something says so (``reads`` is False): roles go by it. Values of options stand as texts; the settings
that they name read them. ``places`` says where in the text a setting stands, by its path. A statement may
hold secrets. Runs in the server and where statements are typed.
"""

from __future__ import annotations

from typing import Any, ClassVar

import msgspec


class Statement(msgspec.Struct, frozen=True, kw_only=True):
    """Any statement; ``title`` is how it begins."""

    title: str
    places: dict[str, int] = {}

    reads: ClassVar[bool] = False
    """Whether it changes nothing, neither here nor elsewhere."""
    waits: ClassVar[bool] = True
    """Whether it may have to wait for a source or a target."""

    def __repr__(self) -> str:
        # The rest may hold secrets.
        return f"<{self.title}>"


class CreateFeed(Statement, frozen=True, kw_only=True):
    """``CREATE CHANGEFEED``: ``tree`` is the feed's configuration, ``query`` what stands behind ``AS``."""

    tree: dict[str, Any]
    query: str = ""
    if_not_exists: bool = False


class DoVerb(Statement, frozen=True, kw_only=True):
    """A verb of the handler on a feed, with its arguments; ``query`` is what stands behind ``AS``."""

    verb: str
    name: str
    arguments: dict[str, Any]
    query: str = ""
    if_exists: bool = False


class DoTableVerb(Statement, frozen=True, kw_only=True):
    """A verb on one table of a feed."""

    verb: str
    name: str
    table: str
    arguments: dict[str, Any]


class VerifyFeed(Statement, frozen=True, kw_only=True):
    """``VERIFY CHANGEFEED``."""

    name: str


class ShowFeeds(Statement, frozen=True, kw_only=True):
    """``SHOW CHANGEFEEDS``, those that a pattern of ``%`` and ``_`` matches, or all."""

    like: str | None = None
    reads: ClassVar[bool] = True
    waits: ClassVar[bool] = False


class ShowFeed(Statement, frozen=True, kw_only=True):
    """``SHOW CHANGEFEED``; ``what`` is empty, or ``tables``, ``errors`` or ``history``."""

    name: str
    what: str = ""
    reads: ClassVar[bool] = True
    waits: ClassVar[bool] = False


class ExplainFeed(Statement, frozen=True, kw_only=True):
    """``EXPLAIN CHANGEFEED``: a feed that there is. It may open a source, so it is no reader's."""

    name: str


class ExplainCreation(Statement, frozen=True, kw_only=True):
    """``EXPLAIN CREATE CHANGEFEED``: one that there could be, likewise."""

    creation: CreateFeed
