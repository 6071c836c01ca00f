"""Whose a name is: a name belongs to one table at a time, and the table that gets it must find it free.

The log shows a table under its new name when its next row comes, and says nothing of the table that had the name before: that one was
dropped, or has another name by now, perhaps the one that the first table left (two tables that swapped their names). ``clear_names`` says
what must be told first, or together. Pure. Runs in the log service.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec

Name = tuple[str, str]


class Moves(msgspec.Struct, frozen=True):
    """What happened to the tables that had names which others have now, by oid."""

    gone: tuple[int, ...]
    moved: dict[int, Name]


def clear_names(claims: Mapping[int, Name], holder: Callable[[Name], int | None], present: Callable[[int], Name | None]) -> Moves:
    """Return what became of the holders of claimed names.

    ``holder`` tells who has a name as far as the log told, ``present`` what a table is called now, None where it is gone. A table whose
    present name another claims, because the catalog is ahead of the log, is put aside under a name of its own until it is named again.
    """
    taken = {name: oid for oid, name in claims.items()}
    gone: list[int] = []
    moved: dict[int, Name] = {}
    waiting = list(claims.values())
    while waiting:
        name = waiting.pop()
        held = holder(name)
        if held is None or held in claims or held in moved or held in gone:
            continue
        to = present(held)
        if to is None:
            gone.append(held)
            continue
        if to in taken:
            to = (name[0], f"{name[1]}~{held}")
        taken[to] = held
        moved[held] = to
        waiting.append(to)
    return Moves(tuple(gone), moved)
