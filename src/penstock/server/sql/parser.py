"""The parser: one statement from its tokens, by recursive descent; ``docs/sql.md`` has the grammar.

Invariants: nothing is executed here and nobody is asked; an error points at the first token that does not fit and says what would. Runs in
the server and where statements are typed.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from penstock.model.errors import PenstockError
from penstock.server.sql.statements import (
    CreateFeed,
    DoTableVerb,
    DoVerb,
    ExplainCreation,
    ExplainFeed,
    ShowFeed,
    ShowFeeds,
    Statement,
    VerifyFeed,
)
from penstock.server.sql.tokens import Token, TokenKind, sql_error, tokens_of
from penstock.settings.loader import merge

FEED, FEEDS = "CHANGEFEED", "CHANGEFEEDS"
BEGINNINGS = ("CREATE", "SHOW", "PAUSE", "RESUME", "ALTER", "RESET", "MOVE", "CLONE", "CANCEL", "VERIFY", "DROP", "EXPLAIN")
SHOWN = ("TABLES", "ERRORS", "HISTORY")
TABLE_VERBS = ("EXCLUDE", "INCLUDE", "RESNAPSHOT", "RETRY")
KEYWORDS = (
    *BEGINNINGS,
    FEED,
    FEEDS,
    *SHOWN,
    *TABLE_VERBS,
    *("FOR", "TABLE", "INTO", "START", "WITH", "SET", "AS", "SELECT", "WHERE", "LIKE"),
    *("TO", "NOW", "SNAPSHOT", "COMMENT", "IF", "NOT", "EXISTS", "ANY"),
)
_NEAR = 0.7
_KEY_PARTS_MAX = 8


def parse(text: str) -> Statement:
    """Return the one statement of a text; raise ``SQL_INVALID`` where it is none, or more than one."""
    return _Parser(text).statement()


def _put(tree: dict[str, Any], parts: Sequence[str], value: Any) -> None:
    """Set a value at its path; where that goes through another value, it takes its place."""
    *above, last = parts
    for name in above:
        below = tree.get(name)
        tree[name] = tree = below if isinstance(below, dict) else {}
    tree[last] = value


class _Parser:
    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = tokens_of(text)
        self._at = 0
        self._places: dict[str, int] = {}

    def statement(self) -> Statement:
        begins: dict[str, Callable[[], Statement]] = {
            "CREATE": self._create,
            "SHOW": self._show,
            "ALTER": self._alter,
            "RESET": self._reset,
            "MOVE": self._move,
            "CLONE": self._clone,
            "VERIFY": self._verify,
            "DROP": self._drop,
            "EXPLAIN": self._explain,
            **dict.fromkeys(("PAUSE", "RESUME", "CANCEL"), self._plain_verb),
        }
        if not self._next.is_word(*begins):
            self._refuse(*BEGINNINGS)
        made = begins[self._next.value.upper()]()
        while self._takes_mark(";"):
            pass
        if self._next.kind is not TokenKind.END:
            last = self._tokens[self._at - 1]
            self._refuse("the end") if not last.is_mark(";") else self._fail("one statement at a time")
        return made

    def _create(self) -> CreateFeed:
        self._words("CREATE", FEED)
        if_not_exists = self._takes_word("IF") and self._words("NOT", "EXISTS")
        tree: dict[str, Any] = {"name": self._name("name")}
        self._words("FOR")
        tree["tables"] = self._tables()
        self._words("INTO")
        tree["sink"] = {"uri": self._literal("sink.uri", "the target's URI in quotes")}
        if self._takes_word("WITH"):
            tree = merge(tree, self._options())
        query = self._query()
        return CreateFeed(title=f"CREATE {FEED}", places=self._places, tree=tree, query=query, if_not_exists=if_not_exists)

    def _show(self) -> Statement:
        self._words("SHOW")
        if self._takes_word(FEEDS):
            like = self._literal("like", "a pattern in quotes") if self._takes_word("LIKE") else None
            return ShowFeeds(title=f"SHOW {FEEDS}", like=like)
        if not self._takes_word(FEED):
            self._refuse(FEED, FEEDS)
        name, what = self._name("name"), ""
        if self._next.is_word(*SHOWN):
            what = self._take().value.lower()
        elif self._next.kind is TokenKind.WORD:
            self._refuse(*SHOWN, "the end")
        return ShowFeed(title=f"SHOW {FEED}", name=name, what=what)

    def _plain_verb(self) -> DoVerb:
        verb = self._take().value
        self._words(FEED)
        return self._verb(verb, self._name("name"), {})

    def _alter(self) -> Statement:
        self._words("ALTER", FEED)
        name = self._name("name")
        if self._next.is_word(*TABLE_VERBS):
            verb = self._take().value.lower()
            self._takes_word("TABLE")
            table = self._name("table")
            return DoTableVerb(
                title=f"ALTER {FEED} {verb.upper()} TABLE",
                places=self._places,
                verb=verb,
                name=name,
                table=table,
                arguments=self._comment(),
            )
        changes: dict[str, Any] = {}
        start: dict[str, str] = {}
        if self._takes_word("FOR"):
            changes["tables"] = self._tables()
        if self._takes_word("INTO"):
            changes["sink"] = {"uri": self._literal("sink.uri", "the target's URI in quotes")}
            start = {"start": self._start()} if self._takes_word("START") else {}
        if self._takes_word("SET", "WITH"):
            changes = merge(changes, self._options())
        query = self._query()
        if not changes and not query:
            self._refuse("FOR", "INTO", "SET", *TABLE_VERBS)
        return self._verb("ALTER", name, {"changes": changes, **start}, query)

    def _reset(self) -> DoVerb:
        self._words("RESET", FEED)
        name = self._name("name")
        self._words("TO")
        return self._verb("RESET", name, {"to": self._start("to")})

    def _start(self, path: str = "start") -> str:
        self._places[path] = self._next.at
        if self._next.kind is not TokenKind.WORD:
            self._refuse("NOW", "SNAPSHOT", "a ts")
        return self._take().value.lower()

    def _move(self) -> DoVerb:
        self._words("MOVE", FEED)
        name = self._name("name")
        self._words("TO")
        to = "" if self._takes_word("ANY") else self._name("to")
        return self._verb("MOVE", name, {"to": to})

    def _clone(self) -> DoVerb:
        self._words("CLONE", FEED)
        name = self._name("name")
        self._words("AS")
        new = self._name("new name")
        self._words("INTO")
        changes: dict[str, Any] = {"sink": {"uri": self._literal("sink.uri", "the target's URI in quotes")}}
        if self._takes_word("WITH"):
            changes = merge(changes, self._options())
        return self._verb("CLONE", name, {"name": new, "changes": changes})

    def _verify(self) -> VerifyFeed:
        self._words("VERIFY", FEED)
        return VerifyFeed(title=f"VERIFY {FEED}", places=self._places, name=self._name("name"))

    def _drop(self) -> DoVerb:
        self._words("DROP", FEED)
        if_exists = self._takes_word("IF") and self._words("EXISTS")
        made = self._verb("DROP", self._name("name"), {})
        return DoVerb(title=made.title, places=made.places, verb="remove", name=made.name, arguments=made.arguments, if_exists=if_exists)

    def _explain(self) -> Statement:
        self._words("EXPLAIN")
        if self._next.is_word("CREATE"):
            return ExplainCreation(title=f"EXPLAIN CREATE {FEED}", places=self._places, creation=self._create())
        self._words(FEED)
        return ExplainFeed(title=f"EXPLAIN {FEED}", places=self._places, name=self._name("name"))

    def _verb(self, verb: str, name: str, arguments: dict[str, Any], query: str = "") -> DoVerb:
        given = {**arguments, **self._comment()}
        title = f"{verb.upper()} {FEED}"
        return DoVerb(title=title, places=self._places, verb=verb.lower(), name=name, arguments=given, query=query)

    def _comment(self) -> dict[str, Any]:
        return {"reason": self._literal("reason", "a text in quotes")} if self._takes_word("COMMENT") else {}

    def _tables(self) -> list[str]:
        if not self._takes_word("TABLE", "TABLES"):
            self._refuse("TABLE")
        self._places["tables"] = self._next.at
        found: list[str] = []
        while True:
            found.append(self._name(f"tables[{len(found)}]", "a table such as shop.orders or shop.*"))
            if not self._takes_mark(","):
                return found

    def _options(self) -> dict[str, Any]:
        """Read ``(key = value, ...)``."""
        self._mark("(")
        tree: dict[str, Any] = {}
        while not self._takes_mark(")"):
            at, quoted = self._next.at, self._next.kind is not TokenKind.WORD
            key = self._name("", "a setting such as flush-interval")
            key = key if quoted else key.replace("_", "-")
            parts = key.split(".")
            if not all(parts) or len(parts) > _KEY_PARTS_MAX:
                self._fail(f"{Token(TokenKind.WORD, key, at, at)} is no setting", at)
            if key in self._places:
                self._fail(f"{key} is set twice", at)
            self._places[key] = at
            self._mark("=")
            _put(tree, parts, self._value())
            if not self._takes_mark(","):
                self._mark(")")
                break
        return tree

    def _value(self) -> Any:
        if not self._takes_mark("("):
            return self._scalar()
        items = [self._scalar()]
        while self._takes_mark(","):
            items.append(self._scalar())
        self._mark(")")
        return items

    def _scalar(self) -> str:
        if self._next.kind not in {TokenKind.WORD, TokenKind.TEXT, TokenKind.NAME}:
            self._refuse("a value")
        return self._take().value

    def _query(self) -> str:
        """Return what stands behind ``AS`` up to the statement's end, as it stands there."""
        if not self._takes_word("AS"):
            return ""
        if not self._next.is_word("SELECT"):
            self._refuse("SELECT")
        begin = self._places["query"] = self._next.at
        while not (self._next.kind is TokenKind.END or self._next.is_mark(";")):
            self._at += 1
        return self._text[begin : self._next.at].rstrip()

    def _name(self, path: str, what: str = "a name") -> str:
        if self._next.kind not in {TokenKind.WORD, TokenKind.NAME, TokenKind.TEXT} or not self._next.value:
            self._refuse(what)
        if path:
            self._places[path] = self._next.at
        return self._take().value

    def _literal(self, path: str, what: str) -> str:
        if self._next.kind is not TokenKind.TEXT:
            self._refuse(what)
        self._places[path] = self._next.at
        return self._take().value

    @property
    def _next(self) -> Token:
        return self._tokens[self._at]

    def _take(self) -> Token:
        self._at += 1
        return self._tokens[self._at - 1]

    def _words(self, *words: str) -> bool:
        """Take these keywords, one after the other."""
        for word in words:
            if not self._takes_word(word):
                self._refuse(word)
        return True

    def _mark(self, mark: str) -> None:
        if not self._takes_mark(mark):
            self._refuse(mark)

    def _takes_word(self, *words: str) -> bool:
        found = self._next.is_word(*words)
        self._at += found
        return found

    def _takes_mark(self, mark: str) -> bool:
        found = self._next.is_mark(mark)
        self._at += found
        return found

    def _refuse(self, *wanted: str) -> NoReturn:
        """Raise at the next token; the keyword that was probably meant is named."""
        near = difflib.get_close_matches(self._next.value.upper(), wanted, n=1, cutoff=_NEAR) if self._next.kind is TokenKind.WORD else []
        names = ", ".join(wanted[:-1]) + (" or " if len(wanted) > 1 else "") + wanted[-1]
        hint = f"Did you mean {near[0]}?" if near else None
        self._fail(f"expected {names}, not {self._next}", hint=hint)

    def _fail(self, message: str, at: int | None = None, hint: str | None = None) -> NoReturn:
        raise self._error(message, self._next.at if at is None else at, hint)

    def _error(self, message: str, at: int, hint: str | None) -> PenstockError:
        return sql_error(self._text, at, message, hint)
