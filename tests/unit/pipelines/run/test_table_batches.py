"""What the driver does with each batch of a table, from Spark's plan to the store; no Spark needed."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from types import FunctionType
from typing import Any
from unittest.mock import MagicMock

import pyarrow as pa
import pytest
from pyspark.sql.types import DateType, StringType, StructType, TimestampNTZType, TimestampType

from duramen import pipelines
from duramen.errors import ConfigError
from duramen.model import topic_id_text
from duramen.pipelines.model.folders import StepFolder
from duramen.pipelines.model.offsets import Offsets
from duramen.pipelines.model.swap_chain import Reading
from duramen.pipelines.run.failures import nowhere
from duramen.pipelines.run.queries import Queries
from duramen.pipelines.run.query_report import QueryReport
from duramen.pipelines.run.step_plan import StepPlan, bounded
from duramen.pipelines.run.table_batches import TableBatches
from duramen.pipelines.tables.changelog import ChangelogError
from duramen.pipelines.tables.parquet_store import ParquetStore
from duramen.pipelines.tables.store import TableStore

OWN = pa.schema([("n", pa.int64())])


class Rows:
    """The rows of a batch, of these records each, and how often they were computed."""

    def __init__(self, *offsets: int) -> None:
        trace = {"_topic": "flights", "_partition": 0, "_deleted": False}
        self.rows = [{"n": offset, "_offset": offset, **trace} for offset in offsets]
        self.computed = 0

    def toArrow(self) -> pa.Table:  # noqa: N802
        self.computed += 1
        return pa.Table.from_pylist(self.rows)


class Table:
    """A step with its checkpoint, in which batches are planned as Spark does it."""

    def __init__(self, folder: Path, **options: str) -> None:
        pipeline = pipelines.Pipeline("tour", folder=folder)

        @pipeline.history(pipelines.Topic("flights", options=options), store="parquet")
        def every(flights: Any) -> Any:
            return flights

        version = StepFolder(folder, "every").version("v1")
        plan = StepPlan(pipeline.step("every"), version, (Reading(0, "flights", Offsets(), None),), None)  # type: ignore[arg-type]
        self.store: TableStore = ParquetStore(version.table, plan.step.shape, OWN)  # type: ignore[attr-defined]
        self.checkpoint = plan.checkpoint
        self.said = QueryReport()
        self.plan("q")
        batches = TableBatches(pipeline, plan, self.store, self.said, nowhere, lambda _: None)
        self.fold: Callable[[Any, int], None] = batches.apply

    def plan(self, query_id: str) -> None:
        """A checkpoint without batches."""
        (self.checkpoint / "offsets").mkdir(parents=True)
        (self.checkpoint / "metadata").write_text(json.dumps({"id": query_id}))

    def batch(self, number: int, end: int, rows: Rows, begin: int | None = None, topic_id: str | None = None) -> None:
        first = {} if begin is None else {"from": {"0": begin}}
        first |= {} if topic_id is None else {"topicId": topic_id}  # type: ignore[dict-item]
        told = json.dumps({"flights": {"0": end, **first}})
        (self.checkpoint / "offsets" / str(number)).write_text(f"v1\n{{}}\n{told}")
        self.fold(rows, number)


def test_a_batch_that_the_table_has_is_computed_all_the_same(tmp_path: Path) -> None:
    """Spark's own state of a batch, the keys that `dropDuplicates` has seen, is written by computing it: a step that
    was killed behind the table's commit could not go on any more."""
    table, again = Table(tmp_path), Rows(0, 1)
    table.batch(0, 2, Rows(0, 1))
    table.batch(0, 2, again)
    assert again.computed == 1
    assert table.store.rows()["n"].to_pylist() == [0, 1]


def test_rows_of_records_of_an_earlier_batch_are_refused_and_not_passed_over(tmp_path: Path) -> None:
    """A window that closes gives a row whose record came before: the table would take it for one that it has."""
    table = Table(tmp_path)
    table.batch(0, 3, Rows(2))
    table.batch(1, 5, Rows(3, 4))
    with pytest.raises(ChangelogError, match=r"flights-0@4, a record of an earlier batch.*emits=.append"):
        table.batch(2, 7, Rows(5, 4))
    assert table.store.rows()["n"].to_pylist() == [2, 3, 4]


def test_a_table_that_lacks_what_its_checkpoint_has_behind_it_is_refused(tmp_path: Path) -> None:
    """Deleted, or put back from a copy: what lies between was left out for ever, without a word."""
    table = Table(tmp_path)
    folder = table.store.folder
    table.batch(0, 3, Rows(0, 1, 2))
    shutil.copytree(folder, tmp_path / "copy")
    table.batch(1, 5, Rows(3, 4))
    shutil.rmtree(folder)
    shutil.copytree(tmp_path / "copy", folder)
    with pytest.raises(ConfigError, match=r"every v1 lacks 2 records that its checkpoint has behind it.*reprocess"):
        table.batch(2, 6, Rows(5))
    shutil.rmtree(folder)
    table.store = type(table.store)(folder, table.store.shape, OWN)
    with pytest.raises(ConfigError, match="lacks 5 records"):
        table.batch(2, 6, Rows(5))
    table.batch(0, 3, Rows(0, 1, 2))
    table.batch(1, 5, Rows(3, 4))
    table.batch(2, 6, Rows(5))
    assert sorted(table.store.rows()["n"].to_pylist()) == list(range(6))


def test_a_deletion_that_has_no_version_is_told(tmp_path: Path) -> None:
    """A record without a value has none, unless it is taken of the record: the row stayed, and nobody said why."""
    pipeline = pipelines.Pipeline("tour", folder=tmp_path)

    @pipeline.table(pipelines.Topic("flights"), keys=["n"], version="seen", store="parquet")
    def latest(flights: Any) -> Any:
        return flights

    version = StepFolder(tmp_path, "latest").version("v1")
    plan = StepPlan(pipeline.step("latest"), version, (Reading(0, "flights", Offsets(), None),), None)  # type: ignore[arg-type]
    own = pa.schema([("n", pa.int64()), ("seen", pa.int64())])
    store = ParquetStore(version.table, plan.step.shape, own)  # type: ignore[attr-defined]
    (plan.checkpoint / "offsets").mkdir(parents=True)
    (plan.checkpoint / "metadata").write_text('{"id": "q"}')
    said = QueryReport()
    fold = TableBatches(pipeline, plan, store, said, nowhere, lambda _: None).apply
    records = [(1, 5, False), (2, 5, False), (1, None, True), (2, 6, True), (3, None, True)]
    for offset, (n, seen, deleted) in enumerate(records):
        row = {"n": n, "seen": seen, "_topic": "flights", "_partition": 0, "_offset": offset, "_deleted": deleted}
        rows = MagicMock()
        rows.toArrow.return_value = pa.Table.from_pylist([row], schema=store.schema)
        told = json.dumps({"flights": {"0": offset + 1}})
        (plan.checkpoint / "offsets" / str(offset)).write_text(f"v1\n{{}}\n{told}")
        fold(rows, offset)
        assert len(said.troubles) == (offset >= 2)
    assert said.troubles[0].startswith("latest v1: flights-0@2 deletes, and has no seen")
    assert store.rows()["n"].to_pylist() == [1]


def test_a_lost_checkpoint_is_no_such_thing(tmp_path: Path) -> None:
    table = Table(tmp_path)
    table.batch(0, 3, Rows(0, 1, 2))
    (table.checkpoint / "metadata").write_text('{"id": "another"}')
    table.batch(0, 2, Rows(0, 1))
    table.batch(1, 4, Rows(2, 3))
    assert table.store.rows()["n"].to_pylist() == [0, 1, 2, 3]


def test_a_checkpoint_that_was_put_back_is_refused_by_its_first_batch(tmp_path: Path) -> None:
    """Its batch has a number that the table has, and more records: a run `--once` left them out, and ended well."""
    table = Table(tmp_path)
    for number in range(3):
        table.batch(number, number + 1, Rows(number))
    with pytest.raises(
        ConfigError, match=r"every v1 has a batch 1 that ended 6 records earlier.*remove the checkpoint"
    ):
        table.batch(1, 9, Rows(*range(1, 9)))
    (table.checkpoint / "metadata").write_text('{"id": "another"}')
    table.batch(0, 9, Rows(*range(9)), begin=0)
    assert table.store.rows()["n"].to_pylist() == [*range(9)]


def test_a_new_checkpoint_that_begins_behind_what_the_table_has_is_refused(tmp_path: Path) -> None:
    """The topic begins later by now: what lies between was left out for ever, without a word."""
    table = Table(tmp_path)
    table.batch(0, 3, Rows(0, 1, 2), begin=0)
    (table.checkpoint / "metadata").write_text('{"id": "another"}')
    with pytest.raises(ConfigError, match="every v1 lacks 4 records: its checkpoint is new"):
        table.batch(0, 9, Rows(7, 8), begin=7)
    with pytest.raises(ConfigError, match="every v1 lacks 6 records: its checkpoint is new"):
        table.batch(0, 9, Rows())
    table.batch(0, 9, Rows(2, 3), begin=2)
    assert table.store.rows()["n"].to_pylist() == [0, 1, 2, 3]


def test_a_step_that_goes_on_behind_losses_does_so_with_a_new_checkpoint_too(tmp_path: Path) -> None:
    table = Table(tmp_path, failOnDataLoss="False")
    table.batch(0, 3, Rows(0, 1, 2), begin=0)
    (table.checkpoint / "metadata").write_text('{"id": "another"}')
    table.batch(0, 9, Rows(7, 8), begin=7)
    assert table.store.rows()["n"].to_pylist() == [0, 1, 2, 7, 8]


def test_a_topic_made_anew_is_told_where_the_source_goes_on(tmp_path: Path) -> None:
    """Its rows were called held back by the function, and `aggregate=True` the way out."""
    table = Table(tmp_path, failOnDataLoss="false")
    ids = [topic_id_text(bytes([n] * 16)) for n in (1, 2)]
    table.batch(0, 3, Rows(0, 1, 2), topic_id=ids[0])
    table.batch(1, 4, Rows(3), topic_id=ids[0])
    with pytest.raises(ConfigError, match=r"topic flights was deleted and made anew.*reprocess"):
        table.batch(2, 2, Rows(0, 1), topic_id=ids[1])
    assert table.store.rows()["n"].to_pylist() == [0, 1, 2, 3]


def test_a_topic_made_anew_is_told_where_the_checkpoint_is_new(tmp_path: Path) -> None:
    """The error of the source names a new checkpoint as a way out, of a stream. As many of the new topic's records as
    the table had of the old one's were passed over, without a word."""
    ids = [topic_id_text(bytes([n] * 16)) for n in (1, 2)]
    table = Table(tmp_path)
    table.batch(0, 3, Rows(0, 1, 2), begin=0, topic_id=ids[0])
    shutil.rmtree(table.checkpoint)
    table.plan("another")
    with pytest.raises(ConfigError, match=r"topic flights was deleted and made anew.*reprocess"):
        table.batch(0, 5, Rows(*range(5)), begin=0, topic_id=ids[1])
    assert table.store.rows()["n"].to_pylist() == [0, 1, 2]
    table.batch(0, 5, Rows(*range(5)), begin=0, topic_id=ids[0])
    assert table.store.rows()["n"].to_pylist() == [0, 1, 2, 3, 4]


def test_a_table_that_is_gone_with_its_checkpoint_begins_anew_with_the_topic(tmp_path: Path) -> None:
    ids = [topic_id_text(bytes([n] * 16)) for n in (1, 2)]
    Table(tmp_path).batch(0, 3, Rows(0, 1, 2), begin=0, topic_id=ids[0])
    for part in ("table", "checkpoint-0"):
        shutil.rmtree(tmp_path / "every" / "v1" / part)
    table = Table(tmp_path)
    table.batch(0, 2, Rows(0, 1), begin=0, topic_id=ids[1])
    table.batch(1, 3, Rows(2), topic_id=ids[1])
    assert table.store.rows()["n"].to_pylist() == [0, 1, 2]


def test_a_batch_that_the_driver_takes_has_a_bound(tmp_path: Path) -> None:
    """The first was all that the topic had: more than the driver holds, again and again, for Spark had planned it."""
    pipeline = pipelines.Pipeline("tour", folder=tmp_path)
    plain, own = pipelines.Topic("flights"), pipelines.Topic("flights", options={"MaxOffsetsPerTrigger": "9"})

    def rows(flights: Any) -> Any:
        return flights

    steps = {
        "table": pipeline.table(plain, keys=["n"]),
        "history": pipeline.history(plain),
        "own": pipeline.history(own),
        "sums": pipeline.table(plain, keys=["n"], aggregate=True),
        "stream": pipeline.stream(plain, to="late"),
    }
    for name, register in steps.items():
        register(FunctionType(rows.__code__, globals(), name))
    found = {name: dict(bounded(step := pipeline.step(name), *step.sources)) for name in steps}
    bound = {"maxBytesPerTrigger": "64m"}
    assert found == {"table": bound, "history": bound, "own": dict(own.options), "sums": {}, "stream": {}}


def test_a_failure_of_the_upkeep_is_told_and_the_batch_stands(tmp_path: Path) -> None:
    table = Table(tmp_path)

    def full(*_given: Any) -> None:
        raise OSError(28, "no space left")

    table.store._upkeep = full  # type: ignore[method-assign]
    table.batch(0, 2, Rows(0, 1))
    assert table.store.rows()["n"].to_pylist() == [0, 1]
    assert [*table.said.troubles] == ["every v1: old files stay for now: [Errno 28] no space left"]


def test_a_table_may_have_moments_and_days() -> None:
    class Frame:
        schema = StructType().add("seen", TimestampType()).add("plain", TimestampNTZType()).add("day", DateType())
        schema = schema.add("_topic", StringType())

    found = Queries._own_schema(None, Frame())  # type: ignore[arg-type]
    assert found.types == [pa.timestamp("us", tz="UTC"), pa.timestamp("us"), pa.date32()]
