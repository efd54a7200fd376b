"""Folds a changelog into a table, on Arrow tables alone: what is new, what is latest, what it replaces.

Every row carries the record it came from (`_topic`, `_partition`, `_offset`) and whether it deletes (`_deleted`). A
table is the fold of its changelog: per key the latest row, unless that one deletes. Three rules make the fold
independent of how the log was cut into batches, and of replays:

- a record below the table's offsets has been folded in already and is passed over;
- a row of a join comes of several records, the others in `_also`: it has been folded in already where all of them are
  contained, for it came into being with the last of them;
- within a partition a later offset is later. A key whose records lie in several partitions has no such order: there the
  table names a version column, the greater version wins, and deleted rows stay as markers, so that an older version
  that comes late finds out. Rows of several topics are ordered by `_timestamp`, the time of their latest record, unless
  the table names another version; rows of the same latest record by the others, in `_also`.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from datetime import date
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from duramen.errors import DuramenError
from duramen.pipelines.model.offsets import Cause, Offsets
from duramen.pipelines.model.table_shape import ALSO

TRACE = pa.schema(
    [
        pa.field("_topic", pa.string()),
        pa.field("_partition", pa.int32()),
        pa.field("_offset", pa.int64()),
        pa.field("_deleted", pa.bool_()),
    ]
)
"""The columns that every table has beside its own; those of several sources have `_timestamp` and `_also`, too."""
_RECORD = r"^(?P<topic>.+)-(?P<partition>\d+)@(?P<offset>\d+)$"
_FIRST_DAY, _LAST_DAY = date.min, date.max


class ChangelogError(DuramenError):
    """A batch that cannot be folded: a key is null, or a column is missing or of another type."""


def cause_of(rows: pa.Table, index: int) -> Cause:
    """The record that row `index` came from."""
    return Cause(*(rows.column(name)[index].as_py() for name in ("_topic", "_partition", "_offset")))


def conform(batch: pa.Table, schema: pa.Schema, keys: Sequence[str], version: str | None = None) -> pa.Table:
    """The batch with the table's columns in the table's order, and one zero among its keys, which has two signs.

    ChangelogError when that cannot be, a text is not UTF-8, a key is null, a row tells no record that it comes from, or
    a key or a version is NaN: it equals nothing, and libraries differ in where it stands among numbers.
    """
    missing = [name for name in schema.names if name not in batch.column_names]
    extra = [name for name in batch.column_names if name not in schema.names]
    if missing or extra:
        told = "; ".join(f"{what} {', '.join(names)}" for what, names in (("lacks", missing), ("adds", extra)) if names)
        raise ChangelogError(f"the batch {told}: build a table of another shape with `duramen spark reprocess`")
    try:
        found = batch.select(schema.names).cast(schema)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, ValueError) as error:
        raise ChangelogError(f"a column has another type than the table's: {error}") from None
    _refuse_no_text(found)
    if orphans := max(found.column(name).null_count for name in TRACE.names):
        # Neither new nor known, neither alive nor deleted: filters would leave them out without a word.
        raise ChangelogError(
            f"{orphans} rows tell no record that they come from: their _cause is null. Leave such rows out, or take "
            "the _cause of another side of the join"
        )
    for key in keys:
        refuse(found, pc.is_null(found.column(key)), f"the key {key} is null")
    floats = [name for name in found.column_names if pa.types.is_floating(found.schema.field(name).type)]
    for name in floats:
        if name in (*keys, version):
            refuse(found, pc.is_nan(found.column(name)), f"{name} is NaN")
        if name in keys:
            positive = pc.add(found.column(name), pa.scalar(0, found.schema.field(name).type))
            found = found.set_column(found.column_names.index(name), found.schema.field(name), positive)
    return found


def refuse_far_days(rows: pa.Table) -> None:
    """ChangelogError with the record of the first row with a day before the year 1 or behind 9999.

    Python has no such days, and what reads a Delta table by its statistics fails at one.
    """
    for name in rows.column_names:
        if pa.types.is_date32(rows.schema.field(name).type):
            days = rows.column(name)
            far = pc.or_(pc.less(days, _FIRST_DAY), pc.greater(days, _LAST_DAY))
            refuse(rows, far, f"{name} is a day outside of the years 1 to 9999, which a Delta table cannot have")


def refuse(rows: pa.Table, which: pa.ChunkedArray, told: str) -> None:
    """ChangelogError with the record of the first of these rows, where there is one."""
    if pc.any(which).as_py():
        record = cause_of(rows, pc.index(which, True).as_py())
        raise ChangelogError(f"{record}: {told}; leave such rows out or name them")


def _refuse_no_text(rows: pa.Table) -> None:
    """ChangelogError with the record of the first row whose text is none: files with such a one cannot be read."""
    for name in rows.column_names:
        try:
            rows.column(name).validate(full=True)
        except pa.ArrowInvalid:
            for index in range(rows.num_rows):
                try:
                    rows.column(name).slice(index, 1).combine_chunks().validate(full=True)
                except pa.ArrowInvalid:
                    told = "no text in UTF-8; without schema= and key= the function gets bytes"
                    raise ChangelogError(f"{cause_of(rows, index)}: {name} is {told}") from None


def other_causes(rows: pa.Table, index: int) -> list[Cause]:
    """The records beside `cause_of` that row `index` came from, where it is of a join."""
    text = rows.column(ALSO)[index].as_py() if ALSO in rows.column_names else None
    return [Cause.parse(each) for each in (text or "").split()]


def came_of(rows: pa.Table, cause: Cause) -> pa.ChunkedArray:
    """Per row, whether it came from this record, alone or with others."""
    hit = pc.equal(rows["_offset"], cause.offset)
    hit = pc.and_(hit, pc.and_(pc.equal(rows["_partition"], cause.partition), pc.equal(rows["_topic"], cause.topic)))
    if ALSO not in rows.column_names:
        return hit
    among = pc.binary_join_element_wise("", rows[ALSO], "", " ", null_handling="replace")  # a space around each
    return pc.or_(hit, pc.match_substring(among, f" {cause.ordered} "))


def fresh(batch: pa.Table, contained: Offsets) -> pa.Table:
    """The rows of which a record is not contained yet."""
    mask = _inside(batch, contained)
    return batch if mask is None else batch.filter(pc.invert(mask))


def refuse_held_back(batch: pa.Table, before: Offsets) -> None:
    """ChangelogError when a row comes of records of earlier batches alone: `fresh` would pass over it.

    before: where the batch begins. Such rows Spark has kept: of windows that closed, of a side of a join that waited.
    """
    mask = _inside(batch, before)
    if mask is not None and pc.any(mask).as_py():
        raise ChangelogError(
            f"a row comes of {cause_of(batch, pc.index(mask, True).as_py())}, a record of an earlier batch, and would "
            "be taken for one that the table has: a join has to give the records of all of its sides, by "
            "pipelines.joined_cause(); a function that holds rows back (windows, outer joins) needs a table with "
            'emits="append"'
        )


def _inside(batch: pa.Table, contained: Offsets) -> pa.ChunkedArray | None:
    """Per row, whether all of its records are contained; None where no row's are."""
    mask = _records_inside(batch["_topic"], batch["_partition"], batch["_offset"], contained)
    if mask is None or ALSO not in batch.column_names or not pc.any(mask).as_py():
        return mask
    # Of most rows of a join the latest record is new, which says all.
    places = np.flatnonzero(mask.to_numpy(zero_copy_only=False))
    lists = pc.utf8_split_whitespace(pc.fill_null(batch[ALSO].take(pa.array(places)), "")).combine_chunks()
    texts = lists.flatten()
    rows, filled = lists.value_parent_indices(), pc.not_equal(texts, "")
    rows, texts = rows.filter(filled), texts.filter(filled)
    if not len(texts):
        return mask
    found = pc.extract_regex(texts, _RECORD)
    topic, partition, offset = (found.field(place) for place in range(3))
    inside = _records_inside(topic, pc.cast(partition, pa.int32()), pc.cast(offset, pa.int64()), contained)
    missing = pc.unique(rows if inside is None else rows.filter(pc.invert(inside)))
    out = np.ones(batch.num_rows, dtype=bool)
    out[places[missing.to_numpy(zero_copy_only=False)]] = False
    return pc.and_(mask, pa.array(out))


def _records_inside(topics: Any, partitions: Any, offsets: Any, contained: Offsets) -> Any:
    """Per record, whether it is contained; None where none is."""
    records = pa.table({"topic": topics, "partition": partitions})
    mask = None
    for place in records.group_by(["topic", "partition"]).aggregate([]).to_pylist():
        end = contained.end(place["topic"], place["partition"])
        if end == 0:
            continue
        same = pc.and_(pc.equal(topics, place["topic"]), pc.equal(partitions, place["partition"]))
        old = pc.and_(same, pc.less(offsets, end))
        mask = old if mask is None else pc.or_(mask, old)
    return mask


def order(version: str | None, columns: Container[str]) -> list[str]:
    """The columns that say which of two rows of a key is later, of a table with these columns."""
    joined = [ALSO] if ALSO in columns else []
    return [*([version] if version else []), "_topic", "_partition", "_offset", *joined]


def latest(batch: pa.Table, keys: Sequence[str], version: str | None = None) -> pa.Table:
    """One row per key: the latest. Rows of the same record keep their order, the last one wins."""
    if batch.num_rows < 2:
        return batch
    ordered = order(version, batch.column_names)
    numbered = batch.select(_distinct([*keys, *ordered])).append_column("#", numbers(batch.num_rows))
    # Latest first: nulls, which are earliest, then come last by themselves.
    by_order = [(name, "descending") for name in [*ordered, "#"]]
    newest_first = numbered.take(pc.sort_indices(numbered, sort_keys=by_order))
    return batch.take(newest_first.group_by(list(keys), use_threads=False).aggregate([("#", "first")])["#_first"])


def merged(state: pa.Table, changes: pa.Table, keys: Sequence[str], version: str | None = None) -> pa.Table:
    """The table after `changes`, which holds one row per key. With a version column, deleted rows stay as markers."""
    gone, come = replaced(state, changes, keys, version)
    return pa.concat_tables([_without(state, gone), come])


def replaced(
    state: pa.Table, changes: pa.Table, keys: Sequence[str], version: str | None = None
) -> tuple[pa.Array, pa.Table]:
    """Which rows of the table go, by their numbers, and which of `changes`, one row per key, come: see merged."""
    theirs = state.select(list(keys)).append_column("#state", numbers(state.num_rows))
    ours = changes.select(list(keys)).append_column("#change", numbers(changes.num_rows))
    pairs = theirs.join(ours, keys=list(keys), join_type="inner")
    old, new = pairs["#state"].combine_chunks(), pairs["#change"].combine_chunks()
    if version:
        wins = _not_older(changes.take(new), state.take(old), order(version, state.column_names))
        changes = _without(changes, new.filter(pc.invert(wins)))
        old = old.filter(wins)
    else:
        changes = changes.filter(pc.invert(changes["_deleted"]))
    return old, changes


def fold(
    state: pa.Table, batch: pa.Table, contained: Offsets, keys: Sequence[str], version: str | None = None
) -> pa.Table:
    """The table after the records of `batch`, given that it contained `contained` before."""
    return merged(state, latest(fresh(batch, contained), keys, version), keys, version)


def alive(rows: pa.Table) -> pa.Table:
    """The rows that a reader sees."""
    return rows.filter(pc.invert(rows["_deleted"])).drop_columns(["_deleted"])


def _not_older(new: pa.Table, old: pa.Table, names: Sequence[str]) -> pa.Array:
    """Per row, whether `new` comes after `old` or is it; a null comes before everything."""
    decided: pa.Array = pa.array(np.ones(new.num_rows, dtype=bool))
    for name in reversed(names):
        ours, theirs = new[name].combine_chunks(), old[name].combine_chunks()
        greater = pc.or_(pc.fill_null(pc.greater(ours, theirs), False), pc.and_(pc.is_valid(ours), pc.is_null(theirs)))
        same = pc.or_(pc.fill_null(pc.equal(ours, theirs), False), pc.and_(pc.is_null(ours), pc.is_null(theirs)))
        decided = pc.or_(greater, pc.and_(same, decided))
    return decided


def _without(rows: pa.Table, indices: pa.Array) -> pa.Table:
    if len(indices) == 0:
        return rows
    mask = np.ones(rows.num_rows, dtype=bool)
    mask[indices.to_numpy(zero_copy_only=False)] = False
    return rows.filter(pa.array(mask))


def numbers(count: int) -> pa.Array:
    """0 to count."""
    return pa.array(np.arange(count, dtype=np.int64))


def _distinct(names: Sequence[str]) -> list[str]:
    return list(dict.fromkeys(names))
