"""Files that are whole or absent: written beside, synced, renamed, and the directory synced."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from duramen.errors import StorageError

SAMPLED_ROWS = 2000


def sync(path: Path) -> None:
    """Wait until the file's bytes, or the directory's names, are on stable storage."""
    opened = os.open(path, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


def make_folder(path: Path) -> None:
    """The folder is there, with those above it, and their names are on stable storage."""
    if path.is_dir():
        return
    if path.parent != path:
        make_folder(path.parent)
    path.mkdir(exist_ok=True)
    sync(path.parent)


def _replace(path: Path, write: Callable[[Path], object], *, durable_name: bool = True) -> None:
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        write(beside)
        sync(beside)
        os.replace(beside, path)
    except BaseException:  # a part of it would keep a full disk full
        beside.unlink(missing_ok=True)
        raise
    if durable_name:
        sync(path.parent)


def write_json(path: Path, value: Any) -> None:
    """Replace the file: a reader finds the old document or the new one, after a crash too."""
    text = json.dumps(value, indent=1, sort_keys=True) + "\n"
    _replace(path, lambda beside: beside.write_text(text, encoding="utf-8"))


def first_json(path: Path, make: Callable[[], Any]) -> Any:
    """Write the file unless it is there, and give what it says: of several writers the first wins, for all of them."""
    if (found := read_json(path)) is not None:
        return found
    beside = path.with_name(f".{path.name}.{uuid4().hex}")
    try:
        beside.write_text(json.dumps(make(), indent=1, sort_keys=True) + "\n", encoding="utf-8")
        sync(beside)
        with suppress(FileExistsError):
            os.link(beside, path)
    finally:
        beside.unlink(missing_ok=True)
    sync(path.parent)
    return read_json(path)


def read_json(path: Path) -> Any:
    """The document, or None when there is none. StorageError when it is no JSON."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise StorageError(f"{path} is damaged: {error}") from None


def write_parquet(path: Path, rows: pa.Table, *, durable_name: bool = True) -> None:
    """Replace the file by these rows. durable_name: else the caller syncs the directory, once for many files."""
    encoded = repeating(rows)
    _replace(
        path,
        lambda beside: pq.write_table(rows, beside, compression="zstd", use_dictionary=encoded),
        durable_name=durable_name,
    )


def repeating(rows: pa.Table) -> list[str]:
    """Columns in which at most half of the values are different ones, by the first rows.

    For the others a dictionary takes twice the time, and a larger file than without.
    """
    sample = rows.slice(0, SAMPLED_ROWS)
    return [
        name
        for name, column in zip(sample.column_names, sample.columns, strict=True)
        if pa.types.is_dictionary(column.type)
        or (not pa.types.is_nested(column.type) and 2 * pc.count_distinct(column, mode="all").as_py() <= len(column))
    ]
