"""How the columns that the code gives differ from those of a table, as an error tells it: adds, drops, changes."""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa

from duramen.pipelines.tables.changelog import TRACE


def changes(old: pa.Schema, new: pa.Schema) -> str:
    """`adds coupon string, drops n int64, changes k int64 to string`; empty for no difference. Without the trace."""
    before, after = (_fields(field for field in schema if field.name not in TRACE.names) for schema in (old, new))
    told = _changes("", before, after)
    if not told and list(before) != list(after):
        return f"has the columns in the order {', '.join(after)}, not {', '.join(before)}"
    return ", ".join(told)


def _fields(fields: Iterable[pa.Field]) -> dict[str, pa.DataType]:
    return {field.name: field.type for field in fields}


def _changes(place: str, old: dict[str, pa.DataType], new: dict[str, pa.DataType]) -> list[str]:
    """place: the column that these are inside of, with its dot."""
    found = [f"adds {place}{name} {kind}" for name, kind in new.items() if name not in old]
    found += [f"drops {place}{name} {kind}" for name, kind in old.items() if name not in new]
    for name, before in old.items():
        if (after := new.get(name, before)) == before:
            continue
        inside = []
        if pa.types.is_struct(before) and pa.types.is_struct(after):
            inside = _changes(f"{place}{name}.", _fields(before), _fields(after))
        found += inside or [f"changes {place}{name} {before} to {after}"]
    return found
