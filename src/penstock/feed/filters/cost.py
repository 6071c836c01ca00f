"""What an expression may cost: refuses those that make large values of small ones, and patterns that a row can keep busy for ever.

Spark has no bound of its own, and the memory in which it evaluates is that of all feeds. So how often a text is repeated, how far it is
padded, how long a sequence is must be seen before anything is evaluated: a constant, or ``least`` with one. Sizes are rough: a column
counts as ``_COLUMN_BYTES``, whatever it holds. A pattern is a constant too; nested repetition is harmless in Java, back references to it
and repetitions side by side are not. Invariant: nothing is evaluated here. Runs in the driver.
"""

from __future__ import annotations

import itertools
import re
from typing import Any

VALUE_BYTES_MAX = 4 << 20
"""How large the value of an expression may be, as far as can be seen."""
DEPTH_MAX = 300
NODES_MAX = 10_000
ARROW_BYTES_MAX = 64 << 20
"""How large a batch may be on its way to Python: values of rows may be longer than what can be seen here."""
_COLUMN_BYTES = 1_024
_FIXED_BYTES = 8
_SCALE_MAX = 1_000
_ADJACENT_MAX = 3
_FIXED = re.compile(r"boolean|tinyint|smallint|int|bigint|float|double|date|time|timestamp(_ntz|_ltz)?|decimal\(.*|interval .*")
_PATTERNS = frozenset(
    {"RLike", "RegExpReplace", "RegExpExtract", "RegExpExtractAll", "RegExpCount", "RegExpSubStr", "RegExpInStr", "StringSplit"}
)
_ADDED_AT = {"StringSpace": 0, "StringLPad": 1, "StringRPad": 1, "BinaryPad": 1, "ArrayInsert": 1, "FormatNumber": 1}
"""Where those that make values longer say by how much."""
_LOOPS = frozenset(
    {"ArrayTransform", "ArrayFilter", "ArrayExists", "ArrayForAll", "ZipWith", "MapFilter", "MapZipWith", "TransformKeys"}
    | {"TransformValues", "ArraySort"}
)
_ROUNDS = frozenset({"Round", "BRound", "RoundCeil", "RoundFloor"})
_WIDTH = re.compile(r"%[^a-zA-Z%]*?(\d+)")
_PATTERN_PART = re.compile(
    r"(?P<open>\((?:\?(?:<?[=!]|[:>]|<\w+>|[a-zA-Z-]*:?))?)|(?P<bar>\|)|[$^]|"
    r"(?P<atom>\)|\\Q.*?(?:\\E|\Z)|\\(?P<back>[1-9]|k<)|\\.|\[\^?\]?(?:\\.|\[[^\]]*\]|[^\]\\])*\]|.)"
    r"(?:(?P<many>[*+]|\{\d+,\})(?P<mode>[?+]?)|(?P<few>(?:\?|\{\d+(?:,\d+)?\})[?+]?))?",
    re.DOTALL,
)


class TooCostly(Exception):  # noqa: N818 - says what is wrong, and is caught where the place is known
    """An expression that may cost too much; the text says which, and why."""


def check_cost(top: Any) -> None:
    """Raise ``TooCostly`` where a tree of Spark's expressions holds what may take too much memory or time."""
    _count(top)
    _bytes_of(top)


def brackets_deep(text: str) -> int:
    """Return how deep brackets are nested in a text: Spark's parser takes seconds for thousands, or ends in an overflow."""
    return max(itertools.accumulate((text_char == "(") - (text_char == ")") for text_char in text), default=0)


def pattern_problem(pattern: str) -> str:
    """Return why a row could keep a regular expression busy for longer than anybody waits; empty where none can."""
    adjacent = 0
    for part in _PATTERN_PART.finditer(pattern):
        if part["back"]:
            return "refers back to a group"
        if part["many"]:
            # What is repeated possessively is never tried again.
            adjacent += part["mode"] != "+"
            if adjacent > _ADJACENT_MAX:
                return f"has more than {_ADJACENT_MAX} repetitions side by side"
        elif part["bar"] or (part["atom"] and part["atom"] != ")" and not part["few"]):
            adjacent = 0
    return ""


def _count(top: Any) -> None:
    waiting, nodes = [(top, 1)], 0
    while waiting:
        one, depth = waiting.pop()
        nodes += 1
        if nodes > NODES_MAX or depth > DEPTH_MAX:
            raise TooCostly(f"it is larger than {NODES_MAX:,} parts, or deeper than {DEPTH_MAX}")
        waiting += [(child, depth + 1) for child in _children(one)]


def _bytes_of(one: Any) -> int:
    """Return how large a value is at the most, roughly; raises ``TooCostly`` where that is too much."""
    name, children = _kind(one), _children(one)
    if not children:
        return len(str(one.sql())) if name == "Literal" else _COLUMN_BYTES
    sizes = []
    for child in children:
        # One frame for each level.
        sizes.append(_bytes_of(child))
        if name == "LambdaFunction":
            # What follows the body are its variables.
            return sizes[0]
    size = _made(one, name, children, sizes)
    if size > VALUE_BYTES_MAX:
        raise TooCostly(f"{_called(one)} may give {size:,} bytes for a row, more than {VALUE_BYTES_MAX:,}")
    return _FIXED_BYTES if _FIXED.fullmatch(_type(one)) else size


def _made(one: Any, name: str, children: list[Any], sizes: list[int]) -> int:
    """Return how large a value is that is made of others of some sizes."""
    _check(one, name, children)
    added = _ADDED_AT.get(name)
    if name in ("StringRepeat", "ArrayRepeat"):
        return sizes[0] * _most(one, children[1])
    if added is not None and (name != "FormatNumber" or _type(children[1]) == "int"):
        return sum(sizes) + _most(one, children[added])
    if name == "Sequence":
        return _FIXED_BYTES * _steps(one, children)
    if name in ("StringReplace", "RegExpReplace"):
        return sizes[0] * max(1, sizes[2])
    widths = sum(map(int, _WIDTH.findall(_constant(one, children[0])))) if name == "FormatString" else 0
    return sum(sizes[:-1]) * sizes[-1] if name in _LOOPS else sum(sizes) + widths


def _check(one: Any, name: str, children: list[Any]) -> None:
    if name in _ROUNDS and len(children) > 1 and _most(one, children[1]) > _SCALE_MAX:
        raise TooCostly(f"{_called(one)} rounds to more than {_SCALE_MAX:,} digits")
    if name == "ArrayAggregate" and not _FIXED.fullmatch(_type(children[1])):
        raise TooCostly(f"{_called(one)} may grow with each element; let it give a number")
    if name in _PATTERNS:
        problem = pattern_problem(_constant(one, children[1]))
        if problem:
            raise TooCostly(f"the pattern of {_called(one)} {problem}, which takes for ever with some rows")


def _steps(one: Any, children: list[Any]) -> int:
    """Return how many elements a sequence has."""
    ends = [_number(child) for child in children[:2]]
    step = _number(children[2]) if len(children) > 2 else 1
    if ends[0] is None or ends[1] is None or not step:
        raise TooCostly(f"the length of {_called(one)} is not bounded; use constants")
    return abs(ends[1] - ends[0]) // abs(step) + 1


def _most(one: Any, count: Any) -> int:
    """Return up to how large a count can be."""
    while _kind(count) == "Cast":
        count = count.child()
    children = _children(count) if _kind(count) == "Least" else [count]
    known = [number for number in map(_number, children) if number is not None]
    if not known:
        raise TooCostly(f"the size of {_called(one)} is not bounded; use a constant, or least(…, 100)")
    return abs(min(known))


def _number(one: Any) -> int | None:
    while _kind(one) == "Cast":
        one = one.child()
    text = str(one.toString()) if _kind(one) == "Literal" else ""
    return int(text) if re.fullmatch(r"-?\d{1,18}", text) else None


def _constant(one: Any, text: Any) -> str:
    if _kind(text) != "Literal":
        raise TooCostly(f"the pattern of {_called(one)} is not a constant")
    return str(text.toString())


def _kind(one: Any) -> str:
    # The name of a node is that of the function for some, of the class for others.
    return str(one.getClass().getSimpleName())


def _type(one: Any) -> str:
    return str(one.dataType().simpleString())


def _called(one: Any) -> str:
    return str(one.prettyName())


def _children(one: Any) -> list[Any]:
    found = one.children()
    return [found.apply(at) for at in range(found.length())]
