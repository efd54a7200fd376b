"""A table with history is a plain fold of its log: late, repeated and deleted versions, cut anyhow, with replays."""

from __future__ import annotations

import os
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.worlds.changelog_histories import ROWS, SCHEMA, History, Row, by_key, order

from duramen.errors import ConfigError
from duramen.pipelines.model.offsets import Offsets
from duramen.pipelines.model.table_shape import TableShape
from duramen.pipelines.tables import delta_rewrite
from duramen.pipelines.tables.changelog import ChangelogError, alive, fresh, merged
from duramen.pipelines.tables.delta_store import DeltaStore
from duramen.pipelines.tables.intervals import of_keys, placed, versions
from duramen.pipelines.tables.parquet_store import ParquetStore
from duramen.pipelines.tables.store import TableStore

PURE = int(os.environ.get("DURAMEN_FOLD_HISTORIES", "200"))
STORED = int(os.environ.get("DURAMEN_FOLD_STORED", "2"))
STORES: dict[str, type[TableStore]] = {"parquet": ParquetStore, "delta": DeltaStore}


def remade(seed: int) -> History:
    """A history in which only deletions have no version, as a record without a value has none."""
    history = History(seed, versioned=True)
    for row in (row for records in history.log for row in records):
        if row["seen"] is None and not row["_deleted"]:
            row["seen"] = history.choose.randint(1, 6)
    history.shape = history.shape._replace(history="scd2")
    return history


def expected(history: History) -> dict[tuple[Any, ...], Row]:
    """The plain fold: what each version says, by its latest record, then where each ends."""
    said: dict[tuple[Any, ...], dict[int, Row]] = {}
    for row in (row for records in history.log for row in records if row["seen"] is not None):
        of_key = said.setdefault(tuple(row[name] for name in history.keys), {})
        if row["seen"] not in of_key or order(row) > order(of_key[row["seen"]]):
            of_key[row["seen"]] = row
    found: dict[tuple[Any, ...], Row] = {}
    for key, of_key in said.items():
        for begin, end in pairwise([*sorted(of_key), None]):
            assert begin is not None
            row = {"valid_from": begin, "valid_to": end, "current": end is None, **of_key[begin]}
            if not row.pop("_deleted"):
                found[*key, begin] = row
    return found


@pytest.mark.timeout(600)
def test_the_intervals_are_those_of_a_plain_fold() -> None:
    for seed in range(PURE // 5):
        history = remade(seed)
        shape, contained = history.shape, Offsets()
        state = versions(ROWS.empty_table(), shape)
        for delivery in history.deliveries():
            came = versions(fresh(delivery.table, contained), shape)
            state = merged(state, placed(of_keys(state, came, shape), came, shape), shape.row_keys, shape.version)
            contained = contained.joined(delivery.ends)
        assert by_key(alive(state), shape.row_keys) == expected(history), f"seed {seed}"


@pytest.mark.parametrize("kind", STORES)
@pytest.mark.timeout(3600)
def test_a_store_keeps_the_intervals_and_their_changelog(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some batches die before their commit, and come again."""
    for seed in range(STORED):
        # Large tables go by the library's merge.
        monkeypatch.setattr(delta_rewrite, "ROWS_MAX", 0 if seed % 2 else 4_000_000)
        history = remade(seed)
        store = STORES[kind](tmp_path / f"{seed}", history.shape, SCHEMA)
        for delivery in history.deliveries():
            if history.choose.random() < 0.2:
                store = STORES[kind](tmp_path / f"{seed}", history.shape, SCHEMA)
            if history.choose.random() < 0.2:
                with monkeypatch.context() as cut, suppress(ZeroDivisionError):
                    cut.setattr(STORES[kind], "_commit", lambda *_: 1 / 0)
                    store.apply(delivery.table, delivery.sink, delivery.number, delivery.ends)
            store.apply(delivery.table, delivery.sink, delivery.number, delivery.ends)
        wanted = expected(history)
        for opened in (store, STORES[kind].reopen(tmp_path / f"{seed}", history.shape)):
            assert by_key(opened.rows(), history.shape.row_keys) == wanted, f"seed {seed}"
        replayed = {}
        for row in (row for rows in store.changes() for row in rows.drop_columns(["_version"]).to_pylist()):
            replayed[tuple(row[name] for name in history.shape.row_keys)] = row
        assert {key: row for key, row in replayed.items() if not row.pop("_deleted")} == wanted, f"seed {seed}"


SHAPE = TableShape(("k",), "at", history="scd2")
PLAIN = pa.schema([("k", pa.string()), ("at", pa.int32()), ("n", pa.int32())])


def put(store: TableStore, batch: int, *rows: tuple[int | None, int, bool]) -> None:
    """Rows of the key a: version, number, whether it deletes."""
    trace = {"_topic": "t", "_partition": batch}
    found = [
        {"k": "a", "at": at, "n": n, "_offset": i, "_deleted": gone, **trace} for i, (at, n, gone) in enumerate(rows)
    ]
    schema = pa.schema([field for field in store.schema if field.name not in SHAPE.added])
    store.apply(pa.Table.from_pylist(found, schema=schema), "q", batch, Offsets({("t", batch): len(rows)}))


def seen(store: TableStore) -> list[tuple[Any, ...]]:
    rows = store.rows().sort_by("valid_from").to_pylist()
    return [(row["valid_from"], row["valid_to"], row["current"], row["n"]) for row in rows]


@pytest.mark.parametrize("kind", STORES)
def test_late_repeated_and_deleted_versions_find_their_place(kind: str, tmp_path: Path) -> None:
    store = STORES[kind](tmp_path, SHAPE, PLAIN)
    put(store, 0, (10, 1, False), (30, 3, False))
    assert seen(store) == [(10, 30, False, 1), (30, None, True, 3)]
    put(store, 1, (20, 2, False))
    assert seen(store) == [(10, 20, False, 1), (20, 30, False, 2), (30, None, True, 3)]
    put(store, 2, (40, 0, True))
    assert seen(store)[-1] == (30, 40, False, 3)
    put(store, 3, (20, 7, False), (35, 4, False), (50, 5, False))
    assert seen(store)[1:] == [(20, 30, False, 7), (30, 35, False, 3), (35, 40, False, 4), (50, None, True, 5)]
    # With wider numbers, as any table.
    store = STORES[kind](tmp_path, SHAPE, pa.schema([("c", pa.string()), *PLAIN.set(1, pa.field("at", pa.int64()))]))
    put(store, 4, (2**40, 6, False), (20, 0, True))
    assert seen(store)[0] == (10, 20, False, 1)
    assert seen(store)[-2:] == [(50, 2**40, False, 5), (2**40, None, True, 6)]
    assert [row["n"] for row in store.rows(1).sort_by("valid_from").to_pylist()] == [1, 2, 3]


def test_a_row_has_a_version_and_no_column_of_the_tables_own(tmp_path: Path) -> None:
    store = ParquetStore(tmp_path, SHAPE, PLAIN)
    put(store, 0, (None, 0, True), (1, 1, False))
    assert seen(store) == [(1, None, True, 1)]
    with pytest.raises(ChangelogError, match="t-1@0: the version at is null"):
        put(store, 1, (None, 0, False))
    with pytest.raises(ConfigError, match="column current is the table's own"):
        ParquetStore.check(SHAPE, pa.schema([*PLAIN, ("current", pa.bool_())]))
