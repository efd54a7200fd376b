"""Every version of a key with the interval in which it holds (slowly changing dimension, type 2). Arrow tables alone.

A version holds from its own value of the version column, `valid_from`, to that of the key's next one, `valid_to`, which
the latest has not: it is `current`. Versions come in any order. One that is late goes between those that are there and
ends the one before; one that comes again replaces what was said of the same value. A deletion is a version without a
row: it stays as a marker, so that the one before ends at it whenever that comes.

So a row is known by its key and `valid_from`, and the intervals are the same however the log was cut into batches.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from duramen.pipelines.model.table_shape import TableShape
from duramen.pipelines.tables.changelog import latest, numbers, refuse, replaced


def versions(rows: pa.Table, shape: TableShape) -> pa.Table:
    """The rows of a batch as versions that hold for ever: one for each key and version, the latest record's.

    A deletion that has no version comes before all there are, and is left out. ChangelogError for a row without one.
    """
    version = rows[shape.version]
    refuse(rows, pc.and_not(pc.is_null(version), rows["_deleted"]), f"the version {shape.version} is null")
    found = latest(rows.filter(pc.is_valid(version)), [*shape.keys, str(shape.version)], shape.version)
    begins = found[shape.version]
    found = found.append_column("valid_from", begins)
    found = found.append_column("valid_to", pa.nulls(found.num_rows, begins.type))
    return found.append_column("current", pc.invert(found["_deleted"]))


def of_keys(state: pa.Table, rows: pa.Table, shape: TableShape) -> pa.Table:
    """The rows of the table that have a key of `rows`."""
    ours = rows.select(list(shape.keys)).group_by(list(shape.keys)).aggregate([])
    theirs = state.select(list(shape.keys)).append_column("#state", numbers(state.num_rows))
    found = theirs.join(ours, keys=list(shape.keys), join_type="left semi")["#state"]
    return state.take(found)


def placed(state: pa.Table, rows: pa.Table, shape: TableShape) -> pa.Table:
    """What changes in the table where `rows` come, as `versions` gives them: those that are not older than what it has
    of the same key and version, and the rows whose interval ends elsewhere now.

    state: all rows of their keys, deletions too, with the same columns.
    """
    gone, come = replaced(state, rows, shape.row_keys, shape.version)
    stays = np.ones(state.num_rows, dtype=bool)
    stays[gone.to_numpy(zero_copy_only=False)] = False
    kept = state.filter(pa.array(stays))
    if kept.num_rows + come.num_rows == 0:
        return come
    both = pa.concat_tables([kept, come.select(state.column_names)])
    both = both.append_column("#came", pa.array(np.arange(both.num_rows) >= kept.num_rows))
    both = both.sort_by([(name, "ascending") for name in shape.row_keys]).combine_chunks()
    ends = _ends(both, shape)
    changed = pc.or_(both["#came"], _differ(both["valid_to"], ends))
    for name, column in {"valid_to": ends, "current": pc.and_not(pc.is_null(ends), both["_deleted"])}.items():
        both = both.set_column(both.column_names.index(name), both.schema.field(name), column)
    return both.filter(changed).drop_columns(["#came"])


def _ends(rows: pa.Table, shape: TableShape) -> pa.ChunkedArray:
    """Of rows in the order of keys and versions, where each ends: null for the last of a key, and for deletions."""
    following = rows.slice(1)
    same = pc.invert(rows["_deleted"].slice(0, rows.num_rows - 1))
    for key in shape.keys:
        same = pc.and_(same, pc.equal(rows[key].slice(0, rows.num_rows - 1), following[key]))
    begins = following["valid_from"]
    ends = pc.if_else(same, begins, pa.scalar(None, begins.type))
    return pa.chunked_array([*ends.chunks, pa.nulls(1, begins.type)])


def _differ(before: pa.ChunkedArray, after: pa.ChunkedArray) -> pa.ChunkedArray:
    return pc.or_(pc.xor(pc.is_null(before), pc.is_null(after)), pc.fill_null(pc.not_equal(before, after), False))
