"""Folds changes into a Delta table of moderate size by Arrow: reads its files, joins them, and writes them anew.

It takes all cores and half the processor time of the library's merge, which does it for tables of any size. Whatever is
not as we make it goes by that, too: tables to which other tools gave settings or files of their own.
"""

from __future__ import annotations

import json
import os
import uuid
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable
from deltalake.transaction import AddAction, RemoveAction

from duramen.pipelines.model.atomic_files import repeating, sync
from duramen.pipelines.model.table_shape import TableShape
from duramen.pipelines.tables.changelog import replaced
from duramen.pipelines.tables.schema_changes import as_wide

BYTES_MAX, UNPACKED_MAX, ROWS_MAX = 64 << 20, 256 << 20, 4_000_000
"""Of all files of the table, which are in memory together: their bytes, those before compression, their rows."""
ROWS_PER_FILE_MIN = 200_000
"""As many files as cores are written at a time, but none of less than this."""

Action = AddAction | RemoveAction


class _File(NamedTuple):
    """One of the table's files. size: bytes."""

    name: str
    size: int
    rows: int


def actions(
    table: DeltaTable, folder: Path, schema: pa.Schema, changes: pa.Table, shape: TableShape, time_ms: int
) -> list[Action] | None:
    """What turns the table into the one after `changes`, which has one row per key; the files to add are written.

    None where the library has to do it. An empty list where nothing changes. schema: the table's, as we made it.
    """
    files = _files(table)
    state = None if files is None or not _plain(table, schema) else _read(folder, files, schema, shape)
    if files is None or state is None:
        return None
    gone, come = replaced(state, changes, shape.row_keys, shape.version)
    if len(gone) == 0 and come.num_rows == 0:
        return []
    rows = [file.rows for file in files]
    ends = np.cumsum(rows)
    touched = np.zeros(len(files), dtype=bool)
    touched[np.searchsorted(ends, gone.to_numpy(zero_copy_only=False), side="right")] = True
    stays = np.repeat(touched, rows)
    stays[gone.to_numpy(zero_copy_only=False)] = False
    result = pa.concat_tables([state.filter(pa.array(stays)), come.cast(state.schema)]).unify_dictionaries()
    removed = [
        RemoveAction(file.name, data_change=True, deletion_timestamp=time_ms, size=file.size, partition_values={})
        for file, hit in zip(files, touched, strict=True)
        if hit
    ]
    return [*removed, *_write(folder, result, time_ms)]


def _plain(table: DeltaTable, schema: pa.Schema) -> bool:
    """Whether the table is as we make it: without a feature, a constraint, a partition that others gave it."""
    protocol, metadata = table.protocol(), table.metadata()
    return (
        (protocol.min_reader_version, protocol.min_writer_version) == (1, 2)
        and not metadata.partition_columns
        and metadata.configuration.keys() <= {"delta.enableExpiredLogCleanup", "delta.deletedFileRetentionDuration"}
        and _by_name(pa.schema(table.schema().to_arrow())).equals(_by_name(schema), check_metadata=True)
    )


def _by_name(schema: pa.Schema) -> pa.Schema:
    """A column that came later is the last one of the table."""
    return pa.schema(sorted(schema, key=lambda field: field.name))


def _files(table: DeltaTable) -> list[_File] | None:
    """The table's files; None where they are too many bytes or rows, or lie elsewhere."""
    told = pa.table(table.get_add_actions())
    # How many rows a file has need not stand in the log.
    if told.num_rows and ("num_records" not in told.column_names or told["num_records"].null_count):
        return None
    # Nothing but these: there are least and greatest values, too, and Python may have no such.
    wanted = told.select(["path", "size_bytes", "num_records"]).to_pylist() if told.num_rows else []
    files = [_File(each["path"], each["size_bytes"], each["num_records"]) for each in wanted]
    if any("%" in file.name or "/" in file.name for file in files):
        return None
    if sum(file.size for file in files) > BYTES_MAX or sum(file.rows for file in files) > ROWS_MAX:
        return None
    return files


def _read(folder: Path, files: list[_File], schema: pa.Schema, shape: TableShape) -> pa.Table | None:
    """All rows, with null where a file is older than a column. None where they are too many bytes, or files of others
    have other columns or types.

    Topics stay numbers where nothing compares them.
    """
    wanted = _as_read(schema, shape)
    with ExitStack() as opened:
        found = []
        for file in files:
            told = pq.ParquetFile(folder / file.name, read_dictionary=[] if shape.version else ["_topic"])
            found.append(opened.enter_context(told))
        groups = [each.metadata.row_group(group) for each in found for group in range(each.num_row_groups)]
        if sum(group.total_byte_size for group in groups) > UNPACKED_MAX:
            return None
        if any(field not in wanted for each in found for field in each.schema_arrow.remove_metadata()):
            return None
        if [each.metadata.num_rows for each in found] != [file.rows for file in files]:
            return None
        return pa.concat_tables([*(as_wide(each.read(), wanted) for each in found), wanted.empty_table()])


def _as_read(schema: pa.Schema, shape: TableShape) -> pa.Schema:
    if shape.version:
        return schema
    at = schema.get_field_index("_topic")
    return schema.set(at, pa.field("_topic", pa.dictionary(pa.int32(), pa.string())))


def _write(folder: Path, rows: pa.Table, time_ms: int) -> list[AddAction]:
    """The rows in as many files as there are cores for, on stable storage before a commit names them."""
    if rows.num_rows == 0:
        return []
    count = min(os.cpu_count() or 1, max(1, rows.num_rows // ROWS_PER_FILE_MIN))
    bounds = [rows.num_rows * part // count for part in range(count + 1)]
    encoded = repeating(rows)
    names = [f"part-{part:05}-{uuid.uuid4()}-c000.snappy.parquet" for part in range(count)]

    def write(part: int) -> AddAction:
        path = folder / names[part]
        slice_ = rows.slice(bounds[part], bounds[part + 1] - bounds[part])
        # Arrow's own schema would make the topics numbers for every reader that goes by it.
        pq.write_table(slice_, path, compression="snappy", use_dictionary=encoded, store_schema=False)
        # No least and greatest values: one that lacks for a column makes deltalake's reader of datasets pass over the
        # file, and of a table of this size no reader gets far by passing over files.
        stats = json.dumps({"numRecords": slice_.num_rows})
        sync(path)
        return AddAction(names[part], path.stat().st_size, {}, time_ms, data_change=True, stats=stats)

    with ThreadPoolExecutor(count) as pool:
        added = list(pool.map(write, range(count)))
    sync(folder)
    return added
