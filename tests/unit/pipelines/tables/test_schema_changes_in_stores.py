"""A table that went on while columns came and numbers became wider equals one of the last columns from its start."""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from duramen.errors import ConfigError
from duramen.pipelines.model.declaration import DEFAULT_RETENTION
from duramen.pipelines.model.offsets import Offsets
from duramen.pipelines.model.table_shape import TableShape
from duramen.pipelines.tables import delta_rewrite, store
from duramen.pipelines.tables.changelog import TRACE
from duramen.pipelines.tables.delta_store import DeltaStore
from duramen.pipelines.tables.parquet_store import ParquetStore
from duramen.pipelines.tables.schema_changes import as_wide
from duramen.pipelines.tables.store import TableStore

KEYED = TableShape(("k",))
SEQUENCES = int(os.environ.get("DURAMEN_FOLD_EVOLUTIONS", "3"))
STORES: dict[str, type[TableStore]] = {"parquet": ParquetStore, "delta": DeltaStore}
WIDER = {pa.int8(): pa.int16(), pa.int16(): pa.int32(), pa.int32(): pa.int64(), pa.float32(): pa.float64()}
NARROW = [pa.int8(), pa.int16(), pa.int32(), pa.float32()]
OTHERS = [pa.string(), pa.bool_(), pa.date32(), pa.timestamp("us", "UTC"), pa.list_(pa.int32()), pa.binary()]
BITS = {pa.int8(): 7, pa.int16(): 15, pa.int32(): 31, pa.int64(): 63}
Row = dict[str, Any]


class Evolution:
    """Batches of rows, between which columns come and become wider. Chosen by a seed."""

    def __init__(self, seed: int) -> None:
        self.choose = random.Random(seed)
        self.shape = self.choose.choice(
            [TableShape(("k",)), TableShape(("k",), "seen"), TableShape(("k", "s")), TableShape()]
        )
        self.columns = {"k": self.choose.choice(NARROW[:3]), "s": pa.string(), "seen": self.choose.choice(NARROW[:3])}
        self.offset = 0

    def changed(self) -> None:
        """A column or two come, or become wider."""
        for _ in range(self.choose.randint(1, 2)):
            narrow = [name for name, kind in self.columns.items() if kind in WIDER]
            if narrow and self.choose.random() < 0.6:
                name = self.choose.choice(narrow)
                self.columns[name] = WIDER[self.columns[name]]
            else:
                self.columns[f"c{len(self.columns)}"] = self.choose.choice([*NARROW, *OTHERS])
        # The order in which the code names them is nothing to the table.
        names = self.choose.sample(list(self.columns), len(self.columns))
        self.columns = {name: self.columns[name] for name in names}

    @property
    def schema(self) -> pa.Schema:
        return pa.schema(list(self.columns.items()))

    def rows(self) -> list[Row]:
        return [self._row() for _ in range(self.choose.randint(0, 12))]

    def _row(self) -> Row:
        row = {name: self._value(name, kind) for name, kind in self.columns.items()}
        self.offset += 1
        deleted = self.choose.random() < 0.2
        return {**row, "_topic": "t", "_partition": 0, "_offset": self.offset - 1, "_deleted": deleted}

    def _value(self, name: str, kind: pa.DataType) -> Any:
        if name in self.shape.keys and name == "k":
            return self.choose.choice([1, 2, 3, 4, 2 ** (BITS[kind]) - 1, -(2 ** BITS[kind])])
        if name == "s":
            return self.choose.choice(["a", "b"])
        if self.choose.random() < 0.2:
            return None
        if kind in BITS:
            return self.choose.choice([self.choose.randint(-5, 5), 2 ** BITS[kind] - 1])
        values = {
            pa.string(): "text",
            pa.bool_(): True,
            pa.date32(): 3,
            pa.binary(): b"\xff",
            pa.list_(pa.int32()): [1, None],
        }
        return values.get(kind, self.choose.randint(-9, 9) / 2 if pa.types.is_floating(kind) else 1_000_000)


def apply(table: TableStore, rows: list[Row], batch: int, end: int) -> None:
    given = pa.Table.from_pylist(rows, schema=table.schema)
    commit = table.apply(given, "query", batch, Offsets({("t", 0): end}))
    if commit is not None:
        table.upkeep(commit, DEFAULT_RETENTION)


def kinds(rows: pa.Table) -> dict[str, pa.DataType]:
    return {field.name: field.type for field in rows.schema}


def sorted_rows(rows: pa.Table, names: list[str]) -> list[Row]:
    return rows.sort_by("_offset").select(names).to_pylist()


@pytest.mark.parametrize("kind", STORES)
def test_a_table_that_went_on_equals_one_of_the_last_columns(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "CHANGES_JOINED", 4)
    monkeypatch.setattr("duramen.pipelines.tables.delta_store.COMPACT_EVERY", 5)
    for seed in range(SEQUENCES):
        # Large tables go by the library's merge.
        monkeypatch.setattr(delta_rewrite, "ROWS_MAX", 4_000_000 if seed % 2 else 0)
        evolution, batches = Evolution(seed), list[tuple[list[Row], int]]()
        folder, made = tmp_path / f"{seed}", STORES[kind]
        then: list[tuple[pa.Table, list[str]]] = []
        watcher = None
        for batch in range(evolution.choose.randint(4, 9)):
            if batch and evolution.choose.random() < 0.6:
                evolution.changed()
            table = made(folder / "gone-on", evolution.shape, evolution.schema)
            batches.append((evolution.rows(), evolution.offset))
            for _ in range(evolution.choose.randint(1, 2)):  # it may come again
                apply(table, batches[-1][0], batch, evolution.offset)
            watcher = watcher or made.reopen(folder / "gone-on", evolution.shape)
            then.append((table.rows(), table.rows().column_names))
        anew = made(folder / "anew", evolution.shape, evolution.schema)
        for batch, (rows, end) in enumerate(batches):
            apply(anew, rows, batch, end)
        names = anew.rows().column_names
        gone_on = made.reopen(folder / "gone-on", evolution.shape)
        assert watcher is not None
        for opened in (gone_on, table, watcher):
            assert kinds(opened.rows()) == kinds(anew.rows()), seed
            assert sorted_rows(opened.rows(), names) == sorted_rows(anew.rows(), names), seed
            for ours, theirs in zip(opened.changes(), anew.changes(), strict=True):
                # Who opened the table before gets the changes from then as they were.
                assert opened is watcher or kinds(ours) == kinds(theirs), seed
                found = as_wide(ours, theirs.schema)
                assert sorted_rows(found, theirs.column_names) == sorted_rows(theirs, theirs.column_names), seed
        for version, (rows, columns) in enumerate(then):
            assert sorted_rows(gone_on.rows(version), columns) == sorted_rows(rows, columns), (seed, version)


def opened(kind: str, folder: Path, shape: TableShape = KEYED, **columns: pa.DataType) -> TableStore:
    return STORES[kind](folder, shape, pa.schema({"k": pa.int32(), "n": pa.int32(), "x": pa.float32()} | columns))


def row(offset: int, **values: Any) -> Row:
    trace = {"_topic": "t", "_partition": 0, "_offset": offset, "_deleted": False}
    return {"k": offset, "n": 7, "x": 0.5, **values, **trace}


@pytest.mark.parametrize("kind", STORES)
@pytest.mark.parametrize("columns", [{"c": pa.string()}, {"n": pa.int64(), "c": pa.string()}], ids=["adds", "widens"])
def test_a_batch_that_died_between_the_columns_and_its_rows_comes_again(
    kind: str, columns: dict[str, pa.DataType], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    apply(opened(kind, tmp_path), [row(0), row(1)], 0, 2)
    before = STORES[kind].reopen(tmp_path, TableShape(("k",)))
    dying = opened(kind, tmp_path, **columns)
    rows = [row(2, k=1, c="new", n=8), row(3, k=2, c="new")]
    with monkeypatch.context() as cut:
        if kind == "delta":
            cut.setattr(DeltaStore, "_rewrite", lambda *_: 1 / 0)
        else:
            cut.setattr("duramen.pipelines.tables.parquet_store.write_json", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            apply(dying, rows, 1, 4)
    for reader in (before, STORES[kind].reopen(tmp_path, TableShape(("k",)))):
        assert sorted_rows(reader.rows(), ["k", "n"]) == [{"k": 0, "n": 7}, {"k": 1, "n": 7}]
        assert [commit.version for commit in reader.commits()] == [0]
    again = opened(kind, tmp_path, **columns)
    for _ in range(2):
        apply(again, rows, 1, 4)
    assert sorted_rows(again.rows(), ["k", "n", "c"]) == [
        {"k": 0, "n": 7, "c": None},
        {"k": 1, "n": 8, "c": "new"},
        {"k": 2, "n": 7, "c": "new"},
    ]
    assert [commit.version for commit in again.commits()] == [0, 1]


@pytest.mark.parametrize("kind", STORES)
@pytest.mark.parametrize(
    ("shape", "columns", "told"),
    [
        (TableShape(("k",)), {"n": pa.int16()}, "which changes n int32 to int16: "),
        (TableShape(("k",)), {"n": pa.float64(), "c": pa.string()}, "which changes n int32 to double: "),
        (TableShape(("x",)), {"x": pa.float64()}, "which changes x float to double .0.1 is another number then"),
        (TableShape(("k",), "x"), {"x": pa.float64(), "n": pa.int64()}, "which changes x float to double .0.1 is"),
        (TableShape(("k",), guarded=False), {"c": pa.string()}, "which adds c string .Spark keeps the sums"),
    ],
)
def test_what_a_table_does_not_go_on_with_is_told_alone(
    kind: str, shape: TableShape, columns: dict[str, pa.DataType], told: str, tmp_path: Path
) -> None:
    apply(opened(kind, tmp_path, shape), [row(0)], 0, 1)
    with pytest.raises(ConfigError, match=f"{told}.*duramen spark reprocess"):
        opened(kind, tmp_path, shape, **columns)
    apply(opened(kind, tmp_path, shape), [row(1)], 1, 2)


def test_readers_of_delta_see_one_type_in_all_files_and_versions_before_as_they_were(tmp_path: Path) -> None:
    apply(opened("delta", tmp_path), [row(0)], 0, 1)
    apply(opened("delta", tmp_path, n=pa.int64(), at=pa.timestamp("us")), [row(1, n=2**40)], 1, 2)
    table = DeltaTable(str(tmp_path / "delta"))
    for path in table.file_uris():
        assert pq.read_schema(path).field("n").type == pa.int64()
    assert sorted(table.to_pyarrow_table()["n"].to_pylist()) == [7, 2**40]
    assert DeltaTable(table.table_uri, version=1).to_pyarrow_table().column_names == ["k", "n", "x", *TRACE.names]
