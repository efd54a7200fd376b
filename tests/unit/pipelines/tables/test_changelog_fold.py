"""A table is the fold of its log: random histories with deletions, replays and interleaved partitions."""

from __future__ import annotations

import os
from pathlib import Path

import pyarrow as pa
import pytest
from tests.worlds.changelog_histories import ROWS, SCHEMA, History, by_key, replayed

from duramen.pipelines.model.offsets import Cause, Offsets
from duramen.pipelines.tables.changelog import ChangelogError, alive, conform, fold
from duramen.pipelines.tables.delta_store import DeltaStore
from duramen.pipelines.tables.parquet_store import ParquetStore
from duramen.pipelines.tables.store import TableStore

PURE = int(os.environ.get("DURAMEN_FOLD_HISTORIES", "200"))
STORED = int(os.environ.get("DURAMEN_FOLD_STORED", "4"))
STORES: dict[str, type[TableStore]] = {"parquet": ParquetStore, "delta": DeltaStore}


@pytest.mark.parametrize("versioned", [False, True], ids=["one partition a key", "a version column"])
@pytest.mark.timeout(600)
def test_the_table_is_the_fold_of_the_log(versioned: bool) -> None:
    """Arrow alone, no store: what is delivered again under another name is told by the offsets."""
    for seed in range(PURE // 2):
        history = History(seed, versioned)
        table, contained = ROWS.empty_table(), Offsets()
        for delivery in history.deliveries():
            table = fold(table, delivery.table, contained, history.keys, history.shape.version)
            contained = contained.joined(delivery.ends)
        found = by_key(alive(table), history.keys)
        wanted = {
            key: {name: value for name, value in row.items() if name != "_deleted"}
            for key, row in history.expected().items()
        }
        assert found == wanted, f"seed {seed}"


@pytest.mark.parametrize("versioned", [False, True], ids=["one partition a key", "a version column"])
@pytest.mark.parametrize("kind", STORES)
@pytest.mark.timeout(3600)
def test_a_store_keeps_the_fold_and_its_changelog(kind: str, versioned: bool, tmp_path: Path) -> None:
    """Opened anew now and then; its changes folded again are the table; versions and offsets lead to each other."""
    for seed in range(STORED):
        history = History(seed, versioned)
        store = STORES[kind](tmp_path / f"{seed}", history.shape, SCHEMA)
        before = None
        for delivery in history.deliveries():
            if history.choose.random() < 0.2:
                store = STORES[kind](tmp_path / f"{seed}", history.shape, SCHEMA)
            commit = store.apply(delivery.table, delivery.sink, delivery.number, delivery.ends)
            assert (commit is None) == (delivery is before), f"seed {seed}"
            before = delivery
        wanted = history.expected()
        found = by_key(store.rows(), history.keys)
        assert found == {k: {n: v for n, v in row.items() if n != "_deleted"} for k, row in wanted.items()}, seed
        assert replayed(store) == wanted, f"seed {seed}"
        _check_versions(store, history)


def _check_versions(store: TableStore, history: History) -> None:
    commits = store.commits()
    assert [commit.version for commit in commits] == list(range(len(commits)))
    last = store.last()
    assert last == commits[-1]
    for partition, records in enumerate(history.log):
        assert last.offsets.end("flights", partition) == len(records)
    for row in store.rows().to_pylist():
        cause = Cause(row["_topic"], row["_partition"], row["_offset"])
        first = store.first_with(cause)
        assert first is not None
        assert cause in {
            Cause(r["_topic"], r["_partition"], r["_offset"])
            for _, rows in store.caused_by(cause)
            for r in rows.to_pylist()
        }
        assert not any(commit.offsets.contains(cause) for commit in commits[: first.version])


def rows(*offsets: int, partition: int = 0, tail: str | None = "N1", miles: int = 1) -> pa.Table:
    place = {"_topic": "flights", "_partition": partition, "_deleted": False}
    made = [{"tail": tail, "leg": 1, "miles": miles, "seen": 1, "_offset": offset, **place} for offset in offsets]
    return pa.Table.from_pylist(made, schema=ROWS)


def test_a_null_key_is_refused_with_its_record() -> None:
    with pytest.raises(ChangelogError, match="flights-0@7: the key tail is null"):
        conform(rows(7, tail=None), ROWS, ["tail"])


def test_another_shape_is_refused() -> None:
    with pytest.raises(ChangelogError, match="lacks miles"):
        conform(rows(7).drop_columns(["miles"]), ROWS, ["tail"])
    with pytest.raises(ChangelogError, match="adds more"):
        conform(rows(7).append_column("more", pa.array([1])), ROWS, ["tail"])
