"""Elements of ENUM and SET: numbers to names and back, columns at a time.

An ENUM is the number of its element, from 1; MySQL's error value 0 shows as an empty text. A SET is a number with one bit per element.
Invariant: ``element_values`` of ``element_names`` gives the values back, as far as elements have names of their own. Runs anywhere.
"""

from __future__ import annotations

import polars as pl

from penstock.model.errors import PenstockError
from penstock.model.table import Column
from penstock.model.types import TypeKind

ELEMENT_KINDS = frozenset({TypeKind.ENUM, TypeKind.SET})
_SET_ELEMENTS_MAX = 64


def element_names(column: Column, values: pl.Series) -> pl.Series:
    """Return the names that a column's numbers stand for; raises where one stands for none."""
    elems, highest = column.type.elems, int(values.max() or 0)  # type: ignore[arg-type]
    if column.type.kind is TypeKind.ENUM:
        if highest > len(elems):
            raise PenstockError("DECODE_FAILED", f"column {column.name}: an ENUM index beyond its {len(elems)} elements")
        return pl.Series(["", *elems], dtype=pl.String).gather(values)
    if len(elems) < _SET_ELEMENTS_MAX and highest >= 1 << len(elems):
        raise PenstockError("DECODE_FAILED", f"column {column.name}: a SET bit beyond its {len(elems)} elements")
    if not elems:
        return values.cast(pl.String).replace("0", "")
    mask = pl.col("mask")
    parts = [pl.when(mask.and_(pl.lit(1 << at, dtype=pl.UInt64)) != 0).then(pl.lit(name)) for at, name in enumerate(elems)]
    joined = pl.concat_str(parts, separator=",", ignore_nulls=True)
    return pl.DataFrame({"mask": values}).select(pl.when(mask.is_not_null()).then(joined).alias("names")).to_series()


def element_values(column: Column, texts: pl.Series) -> pl.Series:
    """Return the numbers of names; NULL where a text is no element, or no list of elements."""
    elems = column.type.elems
    if column.type.kind is TypeKind.ENUM:
        # The first element of a name wins, and an element that is itself empty wins over the error value 0.
        numbers = {"": 0, **{name: at for at, name in reversed(list(enumerate(elems, 1)))}}
        kind: type[pl.DataType] = pl.UInt16
    else:
        bits = {name: 1 << at for at, name in reversed(list(enumerate(elems)))}
        # One step per distinct combination, of which a SET column has few, never per row.
        known = {text: text.split(",") if text else [] for text in texts.drop_nulls().unique().to_list()}
        numbers = {text: sum({bits[p] for p in parts}) for text, parts in known.items() if bits.keys() >= set(parts)}
        kind = pl.UInt64
    names = pl.Series(list(numbers), dtype=pl.String)
    return texts.replace_strict(names, pl.Series(list(numbers.values()), dtype=kind), default=None, return_dtype=kind)


def same_elements(old: Column, new: Column) -> bool:
    """Return whether a number means the same in two versions of a column: elements were added behind the old ones at the most."""
    return new.type.elems[: len(old.type.elems)] == old.type.elems
