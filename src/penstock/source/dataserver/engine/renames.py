"""The names in RENAME TABLE: which table has which name after all steps of a statement.

One statement may rename several tables, each step after the one before, so that names move along a chain or change places. Runs in the
data server.
"""

from __future__ import annotations

from collections.abc import Callable

from penstock.ddl.statement import renamed_tables
from penstock.ddl.tokens import TableName as Name
from penstock.ddl.tokens import tokens
from penstock.model.errors import PenstockError


def parse_renames(query: str) -> list[tuple[Name, Name]] | None:
    """Return old and new name of each step, or None where the statement is no RENAME TABLE."""
    words = [w for w in tokens(query) if w != ";"]
    if [w.upper() for w in words[:2]] not in (["RENAME", "TABLE"], ["RENAME", "TABLES"]):
        return None
    steps = renamed_tables(query, "")
    # Each step is two names of three words with TO between them; a comma follows all but the last.
    if len(words) != 8 * len(steps) + 1 or not all(part for step in steps for name in step for part in name):
        raise PenstockError("UPSTREAM_REFUSED", "RENAME TABLE expects <database>.<table> TO <database>.<table>, ...")
    return steps


def follow_renames(steps: list[tuple[Name, Name]], known: Callable[[Name], bool]) -> dict[Name, Name]:
    """Return the first name of each renamed table and its last; raise where a step names no table, or one that is there already."""
    origins: dict[Name, Name] = {}
    free: set[Name] = set()
    for old, new in steps:
        old_name, new_name = _folded(old), _folded(new)
        if old_name not in origins and (old_name in free or not known(old_name)):
            raise PenstockError("TABLE_UNKNOWN", f"table {old[0]}.{old[1]} does not exist")
        if new_name == old_name:
            raise PenstockError("UPSTREAM_REFUSED", f"table {new[0]}.{new[1]} exists")
        origin = origins.pop(old_name, old_name)
        free.add(old_name)
        if new_name in origins or (known(new_name) and new_name not in free):
            raise PenstockError("UPSTREAM_REFUSED", f"table {new[0]}.{new[1]} exists")
        free.discard(new_name)
        origins[new_name] = origin
    spelled = {_folded(new): new for _, new in steps}
    return {origin: spelled[name] for name, origin in origins.items() if origin != name}


def _folded(name: Name) -> Name:
    return name[0].lower(), name[1].lower()
