"""Which versions of a table the batches of its changes read, and what is refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.types import StringType, StructField, StructType

from duramen import pipelines
from duramen.errors import ConfigError, StorageError
from duramen.pipelines.model.folders import Current, StepFolder
from duramen.pipelines.model.offsets import Offsets
from duramen.pipelines.model.swap_chain import of_changes
from duramen.pipelines.model.table_shape import TableShape
from duramen.pipelines.run import changes
from duramen.pipelines.run.changes import ChangesReader, cut
from duramen.pipelines.tables.parquet_store import ParquetStore
from duramen.pipelines.tables.store import TableCommit

FORM = {"store": "parquet", "keys": ["id"], "version": None, "guarded": True}
NAME = "crm.customers@v1"
OWN = [StructField("id", StringType()), StructField("town", StringType())]


def put(folder: StepFolder, *towns: str | None) -> None:
    """A version of the table for each; None deletes."""
    schema = pa.schema([("id", pa.string()), ("town", pa.string())])
    store = ParquetStore(folder.version("v1").table, TableShape(("id",)), schema)
    for town in towns:
        last = store.last()
        at = last.version + 1 if last else 0
        row = {"id": "ann", "town": town, "_topic": "t", "_partition": 0, "_offset": at, "_deleted": town is None}
        store.apply(pa.Table.from_pylist([row], schema=store.schema), "q", at, Offsets({("t", 0): at + 1}))


def reader(folder: StepFolder) -> ChangesReader:
    options = {"folder": str(folder.path.parent), "table": "customers", "version": "v1", "form": json.dumps(FORM)}
    return ChangesReader({**options, "name": NAME}, StructType([*OWN, *changes._TRACE]))


def towns(of: ChangesReader, start: dict[str, Any], end: dict[str, Any]) -> list[tuple[int, str, str | None]]:
    batches = [batch for each in of.partitions(start, end) for batch in of.read(each)]
    return [(row["_version"], row["_change"], row["town"]) for batch in batches for row in batch.to_pylist()]


def test_a_batch_reads_the_versions_of_its_offsets_however_the_table_moves_on(tmp_path: Path) -> None:
    folder, everything = StepFolder(tmp_path, "customers"), ReadAllAvailable()
    put(folder)
    assert reader(folder).latestOffset(reader(folder).initialOffset(), everything) == {NAME: {"0": 0}}
    put(folder, "Bonn", None)
    begin = reader(folder).initialOffset()
    first = reader(folder).latestOffset(begin, everything)
    assert (first[NAME]["0"], first[NAME]["from"]) == (2, {"0": 0})
    put(folder, "Ulm")
    again = reader(folder)
    assert towns(again, begin, first) == [(0, "upsert", "Bonn"), (1, "delete", None)]
    again.prepareForTriggerAvailableNow()
    put(folder, "Kiel")
    second = again.latestOffset(first, again.getDefaultReadLimit())
    assert towns(again, first, second) == [(2, "upsert", "Ulm")]
    assert again.latestOffset(second, everything) == second, "available now, it does not follow further"
    assert again.reportLatestOffset() == {NAME: {"0": 4}}
    next((folder.version("v1").table / "changes").glob("*2.parquet")).unlink()
    with pytest.raises(StorageError, match="the changes of version 2 are gone"):
        towns(again, first, second)


def test_another_table_than_was_read_is_no_continuation(tmp_path: Path) -> None:
    folder, everything = StepFolder(tmp_path, "customers"), ReadAllAvailable()
    put(folder, "Bonn", "Ulm")
    read = reader(folder).latestOffset(reader(folder).initialOffset(), everything)
    shutil.rmtree(folder.version("v1").table)
    with pytest.raises(ConfigError, match=r"does not see .*/customers/v1/table"):
        reader(folder).latestOffset(read, everything)
    for more in (["Kiel"], ["Jena", "Bonn"]):
        put(folder, *more)
        with pytest.raises(ConfigError, match=r"put back or made again.*`duramen spark reprocess`"):
            reader(folder).latestOffset(read, everything)
    folder.point(Current("v2", "v1"))
    with pytest.raises(ConfigError, match=r"customers is v2 now, not v1, whose changes are read: .*reprocess"):
        reader(folder).latestOffset(read, everything)


def test_a_step_that_began_with_another_version_of_the_table_is_refused() -> None:
    assert of_changes("log", "changes(crm.a)", "crm.a@", "v2", {}).topic == "crm.a@v2"
    assert of_changes("log", "changes(crm.a)", "crm.a@", "v2", {"reads": "orders"}).topic == "crm.a@v2"
    told = {"sources": [{"topic": "orders", "reads": "orders"}, {"topic": "changes(crm.a)", "reads": "crm.a@v1"}]}
    with pytest.raises(ConfigError, match=r"log reads the changes of crm.a@v1, and crm.a@v2 has .*reprocess"):
        of_changes("log", "changes(crm.a)", "crm.a@", "v2", told)


def test_a_batch_has_one_version_at_least() -> None:
    def commit(version: int, rows: int) -> TableCommit:
        return TableCommit(version, "q", version, Offsets(), rows, 0, 0, "")

    found = [commit(4, 900), commit(5, 60), commit(6, 40), commit(7, 1)]
    assert [cut(found, most, 8) for most in (10, 959, 960, 1000, 1001)] == [5, 5, 6, 7, 8]


def test_what_cannot_have_its_changes_read_is_refused(tmp_path: Path) -> None:
    crm = pipelines.Pipeline("crm", folder=tmp_path)
    orders, payments = pipelines.Topic("orders"), pipelines.Topic("payments")

    def kept(rows: Any) -> Any:
        return rows

    def ranked(rows: Any) -> Any:
        return rows

    def placed(rows: Any) -> Any:
        return rows

    def joined(orders: Any, payments: Any) -> Any:
        return orders

    def mailed(rows: Any, batch: int) -> None:
        return

    crm.history(orders)(kept)
    crm.table(orders, keys=["key"], version="at")(ranked)
    crm.table(orders, keys=["key"], version="at", history="scd2")(placed)
    crm.table(orders, payments, keys=["key"])(joined)
    crm.effect(orders)(mailed)
    assert [crm.changes(each).name for each in ("kept", "placed")] == ["changes(crm.kept)", "changes(crm.placed)"]
    for table, why in {"ranked": "has version=", "joined": "is of several sources", "mailed": "is no table"}.items():
        with pytest.raises(ConfigError, match=f"{table} {why}"):
            crm.changes(table)

    def late(rows: Any) -> Any:
        return rows

    with pytest.raises(ConfigError, match="late reads changes of a table, which are no records"):
        crm.table(crm.changes("kept"), keys=["key"], expect={"x": "true"}, on_violation="quarantine")(late)
