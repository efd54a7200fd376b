"""Delta tables that are written anew by Arrow: as the library's merge would have made them, and where it has to."""

from __future__ import annotations

import datetime
import decimal
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import DeltaError
from deltalake.transaction import AddAction
from tests.worlds.changelog_histories import SCHEMA, History, by_key, replayed

from duramen.pipelines.model.offsets import Offsets
from duramen.pipelines.model.table_shape import TableShape
from duramen.pipelines.tables import delta_rewrite
from duramen.pipelines.tables.delta_store import DeltaStore
from duramen.pipelines.tables.store import TableCommit

PLAIN = pa.schema([("k", pa.string()), ("n", pa.int64())])


@pytest.fixture
def merges(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A number for each merge that the library does."""
    found: list[int] = []
    real = DeltaStore._merge

    def merge(self: DeltaStore, *given: Any) -> None:
        found.append(len(found))
        real(self, *given)

    monkeypatch.setattr(DeltaStore, "_merge", merge)
    return found


def opened(folder: Path, keys: tuple[str, ...] = ("k",)) -> DeltaStore:
    return DeltaStore(folder, TableShape(keys), PLAIN)


def put(store: DeltaStore, batch: int, *rows: tuple[str, int], deleted: bool = False) -> TableCommit:
    """These rows, of records of partition `batch`."""
    trace = {"_topic": "t", "_partition": batch, "_deleted": deleted}
    given = [{"k": key, "n": n, "_offset": at, **trace} for at, (key, n) in enumerate(rows)]
    commit = store.apply(
        pa.Table.from_pylist(given, schema=store.schema), "query", batch, Offsets({("t", batch): len(rows)})
    )
    assert commit is not None
    return commit


def kept(store: DeltaStore) -> dict[str, int]:
    found = store.rows()
    keys = found["k"].to_pylist()
    assert len(set(keys)) == len(keys), "a key has two rows"
    return dict(zip(keys, found["n"].to_pylist(), strict=True))


@pytest.mark.parametrize("versioned", [False, True], ids=["one partition a key", "a version column"])
@pytest.mark.timeout(600)
def test_both_ways_make_the_fold_of_the_log_in_any_order(
    versioned: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, merges: list[int]
) -> None:
    monkeypatch.setattr(delta_rewrite, "ROWS_PER_FILE_MIN", 2)
    for seed in range(6):
        history, choose = History(seed, versioned), random.Random(seed)
        store = DeltaStore(tmp_path / f"{seed}", history.shape, SCHEMA)
        for delivery in history.deliveries():
            monkeypatch.setattr(delta_rewrite, "ROWS_MAX", choose.choice([-1, 1000]))
            store.apply(delivery.table, delivery.sink, delivery.number, delivery.ends)
        wanted = history.expected()
        found = by_key(store.rows(), history.keys)
        assert found == {k: {n: v for n, v in row.items() if n != "_deleted"} for k, row in wanted.items()}, seed
        assert replayed(store) == wanted, f"seed {seed}"
    assert len(merges) > 10


def test_only_files_with_a_changed_key_are_written_anew(tmp_path: Path, merges: list[int]) -> None:
    store = opened(tmp_path)
    for batch in range(4):
        put(store, batch, (f"a{batch}", batch), (f"b{batch}", batch))
    before = set(store.files())
    assert len(before) == 4
    put(store, 4, ("a1", 14), ("new", 4))
    assert len(before & set(store.files())) == 3
    assert kept(store) == {"a0": 0, "b0": 0, "a1": 14, "b1": 1, "a2": 2, "b2": 2, "a3": 3, "b3": 3, "new": 4}
    put(store, 5, ("a0", 0), ("b0", 0), deleted=True)
    assert len(store.files()) == 3
    put(store, 6, *((key, 0) for key in kept(store)), deleted=True)
    assert store.files() == []
    put(store, 7, ("gone", 0), deleted=True)
    put(store, 8, ("a0", 8))
    assert kept(store) == {"a0": 8}
    assert store.applied("query") == 8
    assert [commit.version for commit in store.commits()] == list(range(9))
    assert [sorted(store.rows(version)["n"].to_pylist()) for version in (1, 4, 6, 7)] == [
        [0, 0, 1, 1],
        [0, 0, 1, 2, 2, 3, 3, 4, 14],
        [],
        [],
    ]
    assert not merges


def test_a_large_table_is_split_for_the_cores_and_the_file_is_the_librarys(tmp_path: Path) -> None:
    """Whoever opens it sees the declared types: topics are numbers while they are worked on only."""
    store = opened(tmp_path)
    put(store, 0, *((f"{key:06}", key) for key in range(500_000)))
    put(store, 1, *((f"{key:06}", -key) for key in range(0, 600_000, 1000)))
    assert 1 <= len(store.files()) <= 2
    for name in store.files():
        assert pq.read_schema(name).remove_metadata() == store.schema
    found = store.rows()
    assert found.num_rows == 500_100
    assert pc.sum(found["n"]).as_py() == sum(range(500_000)) - 2 * sum(range(0, 500_000, 1000)) - sum(
        range(500_000, 600_000, 1000)
    )


OTHERS: dict[str, Callable[[DeltaTable], Any]] = {
    "a constraint": lambda table: table.alter.add_constraint({"small": "n < 100"}),
    "a note on a column": lambda table: table.alter.set_column_metadata("n", {"comment": "small"}),
    "a setting": lambda table: table.alter.set_table_properties({"delta.checkpointInterval": "7"}),
}


@pytest.mark.parametrize("what", OTHERS)
def test_what_others_gave_a_table_is_the_librarys_affair(what: str, tmp_path: Path, merges: list[int]) -> None:
    store = opened(tmp_path)
    put(store, 0, ("a", 1))
    OTHERS[what](DeltaTable(store.path))
    put(store, 1, ("a", 2))
    assert merges == [0]
    assert kept(store) == {"a": 2}
    if what == "a constraint":
        with pytest.raises(DeltaError):
            put(store, 2, ("a", 200))
        assert kept(store) == {"a": 2}


def test_a_table_that_takes_no_removals_refuses_the_batch(tmp_path: Path) -> None:
    store = opened(tmp_path)
    put(store, 0, ("a", 1))
    DeltaTable(store.path).alter.set_table_properties({"delta.appendOnly": "true"})
    with pytest.raises(DeltaError):
        put(store, 1, ("a", 2))
    assert kept(store) == {"a": 1}


def test_a_file_of_others_with_other_types_is_read_by_the_library(tmp_path: Path, merges: list[int]) -> None:
    store = opened(tmp_path)
    put(store, 0, ("a", 1))
    row = {"k": "c", "n": 3, "_topic": "x", "_partition": 0, "_offset": 0, "_deleted": False}
    theirs = pa.Table.from_pylist([row], schema=store.schema)
    pq.write_table(theirs.set_column(1, "n", theirs["n"].cast(pa.int32())), path := Path(store.path) / "t.parquet")
    table = DeltaTable(store.path)
    added = AddAction("t.parquet", path.stat().st_size, {}, 0, data_change=True, stats='{"numRecords":1}')
    table.create_write_transaction([added], "append", table.schema())
    put(store, 1, ("b", 2), ("c", 4))
    assert merges == [0]
    assert kept(store) == {"a": 1, "b": 2, "c": 4}


@pytest.mark.parametrize("theirs", ["a compaction", "a deletion", "the same batch", "rows"])
def test_a_commit_of_somebody_else_meanwhile_does_not_double_or_lose_a_row(
    theirs: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between our reading and our commit. Left to itself the library put ours behind a compaction of the files that it
    removes, and each row was there twice."""
    store = opened(tmp_path)
    for batch in range(2):
        put(store, batch, (f"k{batch}", batch))
    real = delta_rewrite.actions

    def late(*given: Any) -> Any:
        found = real(*given)
        monkeypatch.setattr(delta_rewrite, "actions", real)
        if theirs == "a compaction":
            DeltaTable(store.path).optimize.compact()
        elif theirs == "a deletion":
            DeltaTable(store.path).delete("k = 'k0'")
        elif theirs == "the same batch":
            put(opened(tmp_path), 2, ("k0", 20), ("k2", 2))
        else:
            more = {"k": "theirs", "n": 7, "_topic": "x", "_partition": 0, "_offset": 0, "_deleted": False}
            write_deltalake(store.path, pa.Table.from_pylist([more], schema=store.schema), mode="append")
        return found

    monkeypatch.setattr(delta_rewrite, "actions", late)
    if theirs == "the same batch":
        with pytest.raises(DeltaError):
            put(store, 2, ("k0", 20), ("k2", 2))
    else:
        put(store, 2, ("k0", 20), ("k2", 2))
    for each in (store, opened(tmp_path)):
        assert kept(each) == {"k0": 20, "k1": 1, "k2": 2} | ({"theirs": 7} if theirs == "rows" else {})
        assert [commit.version for commit in each.commits()] == [0, 1, 2]
        assert each.applied("query") == 2


def test_a_table_that_never_rests_ends_the_batch_by_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = opened(tmp_path)
    put(store, 0, ("a", 1))
    real = delta_rewrite.actions

    def late(*given: Any) -> Any:
        found = real(*given)
        write_deltalake(store.path, store.schema.empty_table(), mode="append")
        return found

    monkeypatch.setattr(delta_rewrite, "actions", late)
    with pytest.raises(DeltaError):
        put(store, 1, ("a", 2))
    assert kept(store) == {"a": 1}
    assert store.applied("query") == 0


KINDS: dict[str, tuple[pa.DataType, list[Any]]] = {
    "whole": (pa.int16(), [-3, None, 7]),
    "text": (pa.string(), ["ä", None, "b"]),
    "long_text": (pa.string(), ["x" * 33, "a", None]),
    "real": (pa.float64(), [float("nan"), -0.0, None]),
    "exact": (pa.decimal128(12, 2), [decimal.Decimal("1.50"), None, decimal.Decimal("-7.25")]),
    "raw": (pa.binary(), [b"\xff", b"", None]),
    "yes": (pa.bool_(), [True, None, False]),
    "day": (pa.date32(), [datetime.date(1969, 12, 31), None, datetime.date(2026, 1, 1)]),
    "seen": (pa.timestamp("us", tz="UTC"), [datetime.datetime(2026, 1, 1, 0, 0, 0, 1, datetime.UTC), None, None]),
    "never": (pa.string(), [None, None, None]),
}
NESTED: dict[str, tuple[pa.DataType, list[Any]]] = {
    "list": (pa.list_(pa.field("element", pa.int64())), [[1, None], None, []]),
    "inner": (pa.struct([("a", pa.string())]), [{"a": "x"}, None, {"a": None}]),
}


@pytest.mark.parametrize("nested", [False, True])
def test_columns_of_every_kind_are_as_the_library_writes_them(
    nested: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, merges: list[int]
) -> None:
    kinds = KINDS | (NESTED if nested else {})
    schema = pa.schema([("k", pa.string()), *((name, kind) for name, (kind, _) in kinds.items())])
    tables = []
    for way in ("library", "arrow"):
        store = DeltaStore(tmp_path / way, TableShape(("k",)), schema)
        monkeypatch.setattr(delta_rewrite, "ROWS_MAX", -1 if way == "library" else 100)
        for batch in range(2):
            rows = [
                {"k": f"{at * (batch + 1)}", "_topic": "t", "_partition": batch, "_offset": at, "_deleted": False}
                | {name: values[at] for name, (_, values) in kinds.items()}
                for at in range(3)
            ]
            given = pa.Table.from_pylist(rows, schema=store.schema)
            store.apply(given, "q", batch, Offsets({("t", batch): 3}))
        tables.append(store.rows().sort_by("k"))
        assert len(merges) == 2, "those of the library's table"
    assert str(tables[0].to_pylist()) == str(tables[1].to_pylist())


def test_a_reader_that_passes_over_files_by_their_statistics_misses_no_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some are the library's, with statistics. One with those of some columns was passed over for the others."""
    monkeypatch.setattr(delta_rewrite, "ROWS_PER_FILE_MIN", 3)
    monkeypatch.setattr("os.cpu_count", lambda: 8)
    choose, store = random.Random(5), opened(tmp_path)
    letters = "aé𝒳z\U0010ffff\ue000"
    for batch in range(8):
        monkeypatch.setattr(delta_rewrite, "ROWS_MAX", choose.choice([-1, 1000]))
        keys = {"".join(choose.choices(letters, k=choose.randint(1, 40))) for _ in range(12)}
        put(store, batch, *((key, choose.randint(-(2**62), 2**62)) for key in keys))
    everything = kept(store)
    table = DeltaTable(store.path)
    assert len(table.file_uris()) > 3
    for key, n in everything.items():
        for filters in ([("n", "=", n)], [("n", ">=", n), ("n", "<=", n)]):
            found = table.to_pyarrow_table(filters=filters)
            assert (key, n) in zip(found["k"].to_pylist(), found["n"].to_pylist(), strict=True), (filters, key)
