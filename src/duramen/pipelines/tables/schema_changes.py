"""How the columns that the code gives differ from those of a table, and which differences a table goes on with.

A table goes on with columns that come and with numbers that become wider: whole numbers up to int64, float to double.
What it has stays true then: rows so far have null in a column that came, and equal numbers in one that became wider.
"""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa

from duramen.pipelines.model.table_shape import TableShape
from duramen.pipelines.tables.changelog import TRACE

_WIDTHS = (pa.int8(), pa.int16(), pa.int32(), pa.int64()), (pa.float32(), pa.float64())


def changes(old: pa.Schema, new: pa.Schema) -> str:
    """`adds coupon string, drops n int64, changes k int64 to string`; empty for no difference. Without the trace, and
    whatever the order."""
    return ", ".join(_changes("", *_own(old, new)))


def hindrances(old: pa.Schema, new: pa.Schema, shape: TableShape) -> str:
    """The changes with which a table of this shape does not go on; empty where it does."""
    before, after = _own(old, new)
    if not shape.guarded:
        found = changes(old, new)
        return f"{found} (Spark keeps the sums in the columns that they were begun with)" if found else ""
    wider = {name for name, kind in after.items() if name in before and is_wider(before[name], kind)}
    # As a float 0.1 is another number than as a double: no row of the table would be found again.
    fractions = {name for name in wider if name in (*shape.keys, shape.version) and pa.types.is_floating(after[name])}
    goes_on = wider - fractions
    kept = {name: before[name] if name in goes_on else kind for name, kind in after.items() if name in before}
    found = ", ".join(_changes("", before, kept))
    return f"{found} (0.1 is another number then, and {min(fractions)} tells rows apart)" if fractions else found


def is_wider(old: pa.DataType, new: pa.DataType) -> bool:
    """Whether every number of the old type is one of the new type, which is another one."""
    return any(old in kinds and new in kinds and kinds.index(old) < kinds.index(new) for kinds in _WIDTHS)


def is_any_wider(old: pa.Schema, new: pa.Schema) -> bool:
    """Whether a column that both have becomes wider."""
    return any(is_wider(old.field(name).type, new.field(name).type) for name in old.names if name in new.names)


def ordered(old: pa.Schema, new: pa.Schema) -> pa.Schema:
    """The fields of `new`: first those that `old` has, in its order."""
    return pa.schema([*(new.field(name) for name in old.names if name in new.names), *_beyond(old, new)])


def joined(one: pa.Schema, other: pa.Schema) -> pa.Schema:
    """The columns of both, as wide as the wider one is; own columns first."""
    kinds = {field.name: field.type for field in other}
    fields = [f.with_type(kinds[f.name]) if is_wider(f.type, kinds.get(f.name, f.type)) else f for f in one]
    fields += [field.remove_metadata() for field in _beyond(one, other)]
    return pa.schema(sorted(fields, key=lambda field: field.name in TRACE.names))


def as_wide(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """Rows that may be older than the schema with its columns, and null in those that they have not."""
    there = set(rows.column_names)
    columns = [
        rows[field.name].cast(field.type) if field.name in there else pa.nulls(rows.num_rows, field.type)
        for field in schema
    ]
    return pa.table(columns, schema=schema)


def _beyond(old: pa.Schema, new: pa.Schema) -> list[pa.Field]:
    return [field for field in new if field.name not in old.names]


def _own(*schemas: pa.Schema) -> tuple[dict[str, pa.DataType], ...]:
    return tuple(_fields(field for field in schema if field.name not in TRACE.names) for schema in schemas)


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
