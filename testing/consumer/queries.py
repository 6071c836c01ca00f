"""What the text of a DDL says about names: the pair of a rename, and which columns an ALTER renames or makes anew.

It reads the `Query` of schema files, as far as the document says that a reader has to, and runs in tests.
"""

import re

TOKEN = re.compile(r"""/\*.*?\*/|--\s[^\n]*|\#[^\n]*|`(?:[^`]|``)*`|"(?:[^"]|"")*"|'(?:[^'\\]|''|\\.)*'|[\w$]+|\S""", re.DOTALL)
NOT_COLUMNS = {
    "PRIMARY",
    "INDEX",
    "KEY",
    "FOREIGN",
    "CONSTRAINT",
    "PARTITION",
    "CHECK",
    "UNIQUE",
    "FULLTEXT",
    "SPATIAL",
    "PERIOD",
    "SYSTEM",
}


def _tokens(query: str) -> list[str]:
    return [token for token in TOKEN.findall(query) if not token.startswith(("/*", "--", "#"))]


def _name(token: str) -> str:
    quote = token[0]
    return token[1:-1].replace(quote * 2, quote) if quote in '`"' else token


def table_rename(query: str) -> tuple[tuple[str, str], tuple[str, str]]:
    """Return the old and the new name of a rename, each as schema and table."""
    tokens = _tokens(query)
    names = [_name(token) for token in tokens if token.startswith("`")]
    if [token for token in tokens if not token.startswith("`")] != ["RENAME", "TABLE", ".", "TO", "."] or len(names) != 4:
        raise ValueError(f"no rename in the form of the document: {query}")
    return (names[0], names[1]), (names[2], names[3])


def column_changes(query: str) -> tuple[dict[str, str], set[str]]:
    """Map new name to old name of the columns that an ALTER renames, and those that it drops and adds again; names without case."""
    renamed, dropped, added = dict[str, str](), set[str](), set[str]()
    for clause in _clauses(_tokens(query)):
        words = [token.upper() for token in clause]
        verb, rest = words[0], clause[1:]
        explicit = len(words) > 1 and words[1] == "COLUMN"
        rest = rest[1:] if explicit else rest
        if rest and rest[0].upper() == "IF":
            rest = rest[3:] if rest[1].upper() == "NOT" else rest[2:]
        if not rest or (not explicit and rest[0].upper() in NOT_COLUMNS):
            continue
        if verb == "CHANGE":
            renamed[_name(rest[1]).casefold()] = _name(rest[0]).casefold()
        elif verb == "RENAME" and explicit:
            renamed[_name(rest[2]).casefold()] = _name(rest[0]).casefold()
        elif verb == "DROP":
            dropped.add(_name(rest[0]).casefold())
        elif verb == "ADD" and rest[0] == "(":
            added.update(_name(first[0]).casefold() for first in _split(rest[1:-1]) if first)
        elif verb == "ADD":
            added.add(_name(rest[0]).casefold())
    return renamed, dropped & added


def _clauses(tokens: list[str]) -> list[list[str]]:
    """Return the clauses of an ALTER TABLE after the name of the table; none of any other statement."""
    words = [token.upper() for token in tokens]
    if not words or words[0] != "ALTER" or "TABLE" not in words:
        return []
    at = words.index("TABLE") + 1
    while words[at] in ("IF", "EXISTS", "ONLY"):
        at += 1
    at += 3 if len(tokens) > at + 1 and tokens[at + 1] == "." else 1
    return [clause for clause in _split(tokens[at:]) if clause]


def _split(tokens: list[str]) -> list[list[str]]:
    """Give the tokens between the commas that stand outside of brackets."""
    depth, parts = 0, [list[str]()]
    for token in tokens:
        depth += (token == "(") - (token == ")")
        if token == "," and depth == 0:
            parts.append([])
        else:
            parts[-1].append(token)
    return parts
