"""Which version of a table a batch looks up, and what it is told where that is gone."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import LongType, StringType, StructField, StructType

from duramen.errors import ConfigError
from duramen.pipelines.model.folders import Current, StepFolder
from duramen.pipelines.model.offsets import Offsets
from duramen.pipelines.model.table_shape import TableShape
from duramen.pipelines.run.lookups import BATCHES_KEPT, Notes, fitting, rows
from duramen.pipelines.tables.parquet_store import VERSIONS_READABLE, ParquetStore

FORM = {"store": "parquet", "keys": ["id"], "version": None, "guarded": True}
NAME = "crm.customers"


class Table:
    """Rows of one key, written one batch after the other."""

    def __init__(self, folder: StepFolder, version: str = "v1") -> None:
        schema = pa.schema([("id", pa.string()), ("town", pa.string())])
        self.store = ParquetStore(folder.version(version).table, TableShape(("id",)), schema)
        self.written = 0

    def put(self, town: str) -> None:
        row = {"id": "ann", "town": town, "_topic": "t", "_partition": 0, "_offset": self.written, "_deleted": False}
        end = Offsets({("t", 0): self.written + 1})
        commit = self.store.apply(pa.Table.from_pylist([row], schema=self.store.schema), "q", self.written, end)
        assert commit is not None
        self.store.upkeep(commit, timedelta(days=1))
        self.written += 1


def towns(folder: StepFolder, note: Path) -> list[Any]:
    found = rows(folder, FORM, note, NAME)
    return [] if found is None else found["town"].to_pylist()


def test_a_batch_reads_the_version_that_was_noted_first(tmp_path: Path) -> None:
    folder, notes = StepFolder(tmp_path, "customers"), Notes(tmp_path / "lookups", NAME)
    table = Table(folder)
    assert [towns(folder, notes.of(batch)) for batch in (0, 1)] == [[], []]
    table.put("Bonn")
    assert [towns(folder, notes.of(batch)) for batch in (0, 1, 2)] == [[], [], ["Bonn"]]
    table.put("Ulm")
    assert [towns(folder, notes.of(2)), table.store.rows()["town"].to_pylist()] == [["Bonn"], ["Ulm"]]
    Table(folder, "v2").put("Kiel")
    folder.point(Current("v2", "v1"))
    assert [towns(folder, notes.of(batch)) for batch in (2, 3)] == [["Bonn"], ["Kiel"]], "a swap is between two batches"
    notes.of(2 + BATCHES_KEPT)
    assert sorted(path.name for path in (tmp_path / "lookups").iterdir()) == [
        f"{batch}-crm.customers.json" for batch in (0, 1, 3)
    ]


def test_rows_that_are_kept_no_more_are_told_with_what_to_do(tmp_path: Path) -> None:
    folder, notes = StepFolder(tmp_path, "customers"), Notes(tmp_path / "lookups", NAME)
    table = Table(folder)
    table.put("Bonn")
    assert towns(folder, notes.of(7)) == ["Bonn"]
    for _ in range(2 * VERSIONS_READABLE):
        table.put("Ulm")
    with pytest.raises(
        ConfigError, match=r"crm.customers v1: the rows of version 0 .*batch 7 .*without .*7-crm.customers"
    ):
        towns(folder, notes.of(7))
    folder.point(Current("v2", "v1"))
    folder.version("v1").path.rename(tmp_path / "away")
    with pytest.raises(ConfigError, match=r"crm.customers v1 was removed, and batch 7"):
        towns(folder, notes.of(7))


def test_a_worker_that_does_not_see_the_folders_is_no_empty_table(tmp_path: Path) -> None:
    """Of another machine: it would note that the table is empty, on a disk of its own."""
    folder = StepFolder(tmp_path, "customers")
    with pytest.raises(ConfigError, match=r"does not see .*/customers/v1/table: on a cluster"):
        towns(folder, Notes(tmp_path / "lookups", NAME).of(0))
    with pytest.raises(ConfigError, match=r"does not see .*/checkpoint-0: on a cluster"):
        Notes(tmp_path / "checkpoint-0" / "lookups", NAME).of(0)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["lookups"]


@pytest.mark.parametrize(
    ("kind", "name", "told"),
    [
        (LongType(), "town", "the column town as string now, and had it as bigint when this run began: run again"),
        (StringType(), "street", "the column street not now, and had it as string"),
    ],
)
def test_other_columns_than_when_the_run_began_end_it(kind: Any, name: str, told: str) -> None:
    found = pa.table({"town": ["Ulm"], "id": ["ann"]})
    assert fitting(found, StructType([StructField("town", StringType())]), NAME).to_pylist() == [{"town": "Ulm"}]
    with pytest.raises(ConfigError, match=f"crm.customers has {told}"):
        fitting(found, StructType([StructField(name, kind)]), NAME)
