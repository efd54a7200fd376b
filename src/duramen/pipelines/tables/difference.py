"""Compares two versions of a table: how many rows, which keys differ, and samples to look at."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from duramen.pipelines.model.json_values import as_python, plain
from duramen.pipelines.model.table_shape import ALSO, TIMESTAMP
from duramen.pipelines.tables.changelog import TRACE
from duramen.pipelines.tables.schema_changes import is_wider

SAMPLES = 5


class Difference(NamedTuple):
    """Old against new. Samples are rows as mappings, whose values JSON has; of a key that differs, the columns that do:
    (old, new).

    changed_columns: column -> keys whose rows differ in it, of the columns that both have. What only one of them has is
    named in columns_only_old and columns_only_new, and does not make rows differ.
    """

    old_rows: int
    new_rows: int
    only_old: int
    only_new: int
    differing: int
    samples: dict[str, list[dict[str, Any]]]
    changed_columns: dict[str, int]
    columns_only_old: list[str]
    columns_only_new: list[str]

    @property
    def same(self) -> int:
        """Keys with equal rows."""
        return self.old_rows - self.only_old - self.differing


def compare(old: pa.Table, new: pa.Table, old_keys: tuple[str, ...], new_keys: tuple[str, ...]) -> Difference:
    """Of two tables, or two histories, which have no keys. By other keys, or of other types, no row is the same; by
    numbers of another width it may be."""
    for key in (key for key in old_keys if key in new_keys):
        old, new = _as_wide(old, new, key), _as_wide(new, old, key)
    if old_keys != new_keys or any(old.schema.field(key).type != new.schema.field(key).type for key in old_keys):
        samples = {"only_old": _sample(old), "only_new": _sample(new), "differing": []}
        _, *apart = _columns(old, new, ())
        return Difference(old.num_rows, new.num_rows, old.num_rows, new.num_rows, 0, samples, {}, *apart)
    return difference(old, new, old_keys) if old_keys else compare_histories(old, new)


def difference(old: pa.Table, new: pa.Table, keys: tuple[str, ...]) -> Difference:
    """Of two tables with the keys `keys`. Which record a row came from does not count."""
    ours = old.select(list(keys)).append_column("#old", pa.array(np.arange(old.num_rows)))
    theirs = new.select(list(keys)).append_column("#new", pa.array(np.arange(new.num_rows)))
    pairs = ours.join(theirs, keys=list(keys), join_type="full outer")
    both = pairs.filter(pc.and_(pc.is_valid(pairs["#old"]), pc.is_valid(pairs["#new"])))
    left = old.take(both["#old"])
    right = new.take(both["#new"])
    columns, columns_only_old, columns_only_new = _columns(old, new, keys)
    differs = {name: _differs(left[name], right[name]) for name in columns}
    any_differs = np.zeros(both.num_rows, dtype=bool)
    for mask in differs.values():
        any_differs |= mask
    only_old = old.take(pairs.filter(pc.is_null(pairs["#new"]))["#old"])
    only_new = new.take(pairs.filter(pc.is_null(pairs["#old"]))["#new"])
    changed = []
    for index in np.flatnonzero(any_differs)[:SAMPLES]:
        at = int(index)
        sample = {key: plain(left[key][at]) for key in keys}
        sample |= {n: [plain(left[n][at]), plain(right[n][at])] for n, mask in differs.items() if mask[at]}
        changed.append(sample)
    return Difference(
        old_rows=old.num_rows,
        new_rows=new.num_rows,
        only_old=only_old.num_rows,
        only_new=only_new.num_rows,
        differing=int(any_differs.sum()),
        samples={
            "only_old": _sample(only_old),
            "only_new": _sample(only_new),
            "differing": changed,
        },
        changed_columns={name: count for name, mask in differs.items() if (count := int(mask.sum()))},
        columns_only_old=columns_only_old,
        columns_only_new=columns_only_new,
    )


def _as_wide(rows: pa.Table, others: pa.Table, key: str) -> pa.Table:
    """The rows with a key as wide as that of the others."""
    kind = others.schema.field(key).type
    at = rows.column_names.index(key)
    return rows.set_column(at, key, rows[key].cast(kind)) if is_wider(rows.schema.field(key).type, kind) else rows


def _columns(old: pa.Table, new: pa.Table, keys: tuple[str, ...]) -> tuple[list[str], list[str], list[str]]:
    """The columns that hold something of the rows' own: of both, of the old only, of the new only."""
    apart = (*keys, *TRACE.names, TIMESTAMP, ALSO)
    ours, theirs = ([n for n in rows.column_names if n not in apart] for rows in (old, new))
    return (
        [name for name in ours if name in theirs],
        [name for name in ours if name not in theirs],
        [name for name in theirs if name not in ours],
    )


def compare_histories(old: pa.Table, new: pa.Table) -> Difference:
    """Of two histories: a row's identity is the records it came from and how many of that record's rows precede it."""
    return difference(_numbered(old), _numbered(new), ("record", "nth"))


def _numbered(rows: pa.Table) -> pa.Table:
    places = [rows["_topic"], pc.cast(rows["_partition"], pa.string()), pc.cast(rows["_offset"], pa.string())]
    if ALSO in rows.column_names:
        places.append(pc.fill_null(rows[ALSO], ""))
    record = pc.binary_join_element_wise(*places, "/")
    rows = rows.append_column("record", record).sort_by("record")
    nth: list[int] = []
    before = None
    for name in rows["record"].to_pylist():
        nth.append(nth[-1] + 1 if name == before else 0)
        before = name
    return rows.append_column("nth", pa.array(nth, pa.int64()))


def _differs(ours: pa.ChunkedArray, theirs: pa.ChunkedArray) -> np.ndarray[Any, np.dtype[np.bool_]]:
    if ours.type != theirs.type or pa.types.is_nested(ours.type):
        found = [a != b for a, b in zip(map(as_python, ours), map(as_python, theirs), strict=True)]
        return np.array(found, dtype=bool)
    unequal = pc.fill_null(pc.not_equal(ours, theirs), False)
    if pa.types.is_floating(ours.type):  # NaN is not equal to itself
        unequal = pc.and_not(unequal, pc.fill_null(pc.and_(pc.is_nan(ours), pc.is_nan(theirs)), False))
    one_null = pc.xor(pc.is_null(ours), pc.is_null(theirs))
    mask: np.ndarray[Any, np.dtype[np.bool_]] = pc.or_(unequal, one_null).to_numpy()
    return mask


def _sample(rows: pa.Table) -> list[dict[str, Any]]:
    return [
        {name: plain(rows[name][index]) for name in rows.column_names} for index in range(min(rows.num_rows, SAMPLES))
    ]
