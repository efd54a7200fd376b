"""What Spark's server calls over Spark Connect: a pickled copy, that looks whether its run goes on. No Spark needed."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pytest
from pyspark import cloudpickle

from duramen import pipelines
from duramen.errors import ConfigError
from duramen.pipelines.model.folders import BusyError, StepFolder, VersionFolder
from duramen.pipelines.model.offsets import Offsets
from duramen.pipelines.model.progress import Written
from duramen.pipelines.model.swap_chain import Reading
from duramen.pipelines.model.table_shape import TableShape
from duramen.pipelines.run.failures import nowhere
from duramen.pipelines.run.queries import uncounted
from duramen.pipelines.run.query_report import QueryReport
from duramen.pipelines.run.server_batches import ServerBatches
from duramen.pipelines.run.step_plan import StepPlan
from duramen.pipelines.run.table_batches import TableBatches
from duramen.pipelines.tables.delta_store import DeltaStore
from duramen.pipelines.tables.parquet_store import ParquetStore
from duramen.pipelines.tables.store import TableStore

OWN = pa.schema([("n", pa.int64())])
TRACE = {"_topic": "flights", "_partition": 0, "_deleted": False}


class Rows:
    """The rows of a batch, of these records each."""

    def __init__(self, *offsets: int) -> None:
        self.rows = [{"n": offset, "_offset": offset, **TRACE} for offset in offsets]

    def toArrow(self) -> pa.Table:  # noqa: N802
        return pa.Table.from_pylist(self.rows)


class Unpicklable:
    """As a DataFrame and a session are."""

    def __reduce__(self) -> tuple[Any, ...]:
        raise TypeError("cannot pickle")


def planned(folder: Path) -> tuple[pipelines.Pipeline, StepPlan]:
    """A step whose function and rows cannot leave the process, and two batches of its checkpoint."""
    pipeline, session = pipelines.Pipeline("tour", folder=folder), Unpicklable()

    @pipeline.history(pipelines.Topic("flights"))
    def every(flights: Any) -> Any:
        return flights, session

    version = StepFolder(folder, "every").version("v1")
    reading = Reading(0, "flights", Offsets(), None)
    plan = StepPlan(pipeline.step("every"), version, (reading,), cast(Any, session))
    (plan.checkpoint / "offsets").mkdir(parents=True)
    (plan.checkpoint / "metadata").write_text('{"id": "q"}')
    for number, end in enumerate((2, 3)):
        (plan.checkpoint / "offsets" / str(number)).write_text(f'v1\n{{}}\n{{"flights": {{"0": {end}}}}}')
    return pipeline, plan


def copied(pipeline: pipelines.Pipeline, plan: StepPlan, store: TableStore, said: QueryReport) -> bytes:
    """What the server gets of the table's batches."""
    table = TableBatches(pipeline, plan, store, said, nowhere, uncounted)
    sent = ServerBatches(table.apply, plan.version, said, plan.version.name_run())
    return cast(bytes, cloudpickle.dumps(sent))


@pytest.mark.parametrize("kind", [DeltaStore, ParquetStore])
def test_a_copy_folds_batches_in_and_tells_the_run(tmp_path: Path, kind: type[TableStore]) -> None:
    pipeline, plan = planned(tmp_path)
    store = kind(plan.version.table, plan.step.shape, OWN)  # type: ignore[attr-defined]
    said = QueryReport(plan.version.server_report)
    with plan.version.locked():
        there = cloudpickle.loads(copied(pipeline, plan, store, said))
        there(Rows(0, 1), 0)
        said.fetch()
        assert list(said.written) == [0]
        there(Rows(0, 1), 0)  # again, as Spark does after a kill
        there(Rows(2), 1)
        said.fetch()
        said.fetch()
    assert {batch: written.rows for batch, written in said.written.items()} == {0: 2, 1: 1}
    assert sorted(store.rows()["n"].to_pylist()) == [0, 1, 2]


@pytest.mark.parametrize("kind", [DeltaStore, ParquetStore])
@pytest.mark.parametrize("shape", [TableShape(), TableShape(("k",), "n"), TableShape(("k",), "n", history="scd2")])
def test_a_table_that_is_opened_there_is_the_same(tmp_path: Path, kind: type[TableStore], shape: TableShape) -> None:
    store = kind(tmp_path, shape, pa.schema([("k", pa.string()), *OWN]))
    there = cloudpickle.loads(cloudpickle.dumps(store))
    assert (type(there), there.folder, there.shape, there.schema) == (kind, tmp_path, shape, store.schema)


def test_a_copy_whose_run_has_ended_takes_no_batch(tmp_path: Path) -> None:
    """The server goes on with a query whose client was killed. Another run may have the version by then."""
    pipeline, plan = planned(tmp_path)
    store = ParquetStore(plan.version.table, plan.step.shape, OWN)  # type: ignore[attr-defined]
    with plan.version.locked():
        there = cloudpickle.loads(copied(pipeline, plan, store, QueryReport()))
    with pytest.raises(ConfigError, match=r"the run of every v1 that started this query has ended"):
        there(Rows(0, 1), 0)
    with plan.version.locked(), pytest.raises(ConfigError, match="has ended"):
        there(Rows(0, 1), 0)  # of a swap, or of another run
    assert store.last() is None


def test_who_takes_the_lock_waits_for_a_batch_that_is_under_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A swap would look at what the batch goes on to write."""
    monkeypatch.setattr("duramen.pipelines.model.folders.WRITING_SECONDS_MAX", 0.0)
    version = VersionFolder(tmp_path, "every", "v1")
    with version.writing():
        with pytest.raises(BusyError, match="Spark's server still takes a batch of every v1"), version.locked():
            pass
        assert not version.is_run_by("")
    with version.locked():
        assert version.is_run_by(version.name_run())


def test_a_server_that_does_not_see_the_folder_is_refused(tmp_path: Path) -> None:
    pipeline, plan = planned(tmp_path)
    store = ParquetStore(plan.version.table, plan.step.shape, OWN)  # type: ignore[attr-defined]
    sent = copied(pipeline, plan, store, QueryReport())
    shutil.rmtree(plan.version.path)
    with pytest.raises(ConfigError, match=r"Spark's server finds no table in .*v1/table"):
        cloudpickle.loads(sent)
    assert not plan.version.path.exists(), "and makes none"


def test_what_the_server_writes_just_now_is_fetched_when_it_is_whole(tmp_path: Path) -> None:
    version = VersionFolder(tmp_path, "every", "v1")
    said = QueryReport(version.server_report)
    said.fetch()
    whole = '{"written": [[0, [2, 64]]], "troubles": ["once"]}\n'
    version.server_report.write_text(whole + whole[:9])
    said.fetch()
    assert (said.written, list(said.troubles)) == ({0: Written(2, 64)}, ["once"])
    version.server_report.write_text(whole + whole.replace("[0", "[1"))
    said.fetch()
    assert said.written == {0: Written(2, 64), 1: Written(2, 64)}
