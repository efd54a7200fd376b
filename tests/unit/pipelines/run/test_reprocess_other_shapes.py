"""A declaration whose keys, order or store changed, beside a table that the one before made."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import from_arrow_schema

from duramen import pipelines
from duramen.cli.spark.reprocess import lines
from duramen.errors import ConfigError
from duramen.model import topic_id_text
from duramen.pipelines.model.declaration import TableStep
from duramen.pipelines.model.folders import Current, StepFolder
from duramen.pipelines.model.function_fingerprint import other_logic
from duramen.pipelines.model.offsets import Offsets
from duramen.pipelines.model.swap_chain import Reading
from duramen.pipelines.run.queries import Queries
from duramen.pipelines.run.reprocess import Reprocessing
from duramen.pipelines.run.step_plan import StepPlan
from duramen.pipelines.run.stores import STORES
from duramen.pipelines.tables.schema_changes import as_wide

FLIGHTS = pipelines.Topic("flights")
BEFORE = pa.schema([("tail", pa.string()), ("miles", pa.int64())])
AFTER = pa.schema([("tail", pa.string()), ("leg", pa.int64()), ("miles", pa.int64())])
Declare = Callable[[pipelines.Pipeline], Any]


def declared(folder: Path, declare: Declare) -> pipelines.Pipeline:
    pipeline = pipelines.Pipeline("tour", folder=folder)

    def aircraft(flights: Any) -> Any:
        return flights

    declare(pipeline)(aircraft)
    return pipeline


def made(pipeline: pipelines.Pipeline, version: str, schema: pa.Schema, accept: bool = False) -> None:
    """A version as a run makes it, of four records."""
    queries, step = Queries(pipeline, None, None), pipeline.step("aircraft")  # type: ignore[arg-type]
    assert isinstance(step, TableStep)
    place = queries.folder("aircraft").version(version)
    rows: Any = SimpleNamespace(schema=from_arrow_schema(schema))
    plan = StepPlan(step, place, (Reading(0, step.sources[0].name, Offsets(), None),), rows)  # type: ignore[arg-type]
    place.describe(queries._described(plan, accept))
    store = STORES[step.store](place.table, step.shape, schema)
    trace = {"_topic": "flights", "_partition": 0, "_deleted": False}
    records = [{"tail": f"N{n % 2}", "leg": n, "miles": n, "_offset": n, **trace} for n in range(4)]
    given = as_wide(pa.Table.from_pylist(records), store.schema).drop_columns(list(step.shape.added))
    store.apply(given, "q", 0, Offsets({("flights", 0): 4}))


@pytest.mark.parametrize("store", STORES)
def test_a_column_more_is_told_and_nothing_of_those_that_stay(store: str, tmp_path: Path) -> None:
    """Two whole schemas were shown. Where no run goes on with the columns, that is not advised."""

    def other(flights: Any) -> Any:
        return flights.select("*")

    other.__name__ = "aircraft"
    more = pa.schema([*BEFORE, ("coupon", pa.string())])
    other_type = pa.schema([("tail", pa.string()), ("miles", pa.float64())])
    made(declared(tmp_path, lambda p: p.table(FLIGHTS, keys=["tail"], store=store)), "v1", BEFORE)
    pipeline = pipelines.Pipeline("tour", folder=tmp_path)
    pipeline.table(FLIGHTS, keys=["tail"], store=store)(other)
    told = r"aircraft v1 was made by other logic than the code has now \({}\): `duramen spark reprocess` builds it "
    with pytest.raises(ConfigError, match=told.format("changes miles int64 to double") + "again beside the old one$"):
        made(pipeline, "v1", other_type)
    with pytest.raises(ConfigError, match=told.format("adds coupon string") + ".*; --accept-change goes on"):
        made(pipeline, "v1", more)
    with pytest.raises(ConfigError, match=r"other logic than the code has now: .*--accept-change goes on"):
        made(pipeline, "v1", BEFORE)
    with pytest.raises(ConfigError, match=r"the code gives, which changes miles int64 to double: .*reprocess"):
        made(pipeline, "v1", other_type, accept=True)


OTHERS: dict[str, Declare] = {
    "more keys": lambda p: p.table(FLIGHTS, keys=["tail", "leg"]),
    "other keys": lambda p: p.table(FLIGHTS, keys=["leg"]),
    "a history": lambda p: p.history(FLIGHTS),
    "another store": lambda p: p.table(FLIGHTS, keys=["tail"], store="parquet"),
    "ordered": lambda p: p.table(FLIGHTS, keys=["tail"], version="leg"),
    "every version": lambda p: p.table(FLIGHTS, keys=["tail"], version="leg", history="scd2"),
    "an aggregate": lambda p: p.table(FLIGHTS, keys=["tail"], aggregate=True),
}


@pytest.mark.parametrize("what", OTHERS)
def test_a_version_is_read_as_what_it_was_made(what: str, tmp_path: Path) -> None:
    """`reprocess` could not compare with it, so the new version was never built, and no swap possible."""
    made(declared(tmp_path, lambda p: p.table(FLIGHTS, keys=["tail"])), "v1", BEFORE)
    pipeline = declared(tmp_path, OTHERS[what])
    old = pipelines.open_table(pipeline, "aircraft")
    assert sorted(row["miles"] for row in old.rows().to_pylist()) == [2, 3]
    made(pipeline, "v2", AFTER)
    report = Reprocessing(pipeline, "aircraft").report("v2")
    assert report.behind == 0
    assert report.difference is not None
    same = what in {"another store", "ordered", "an aggregate"}
    assert (report.difference.only_old, report.difference.same) == ((0, 2) if same else (2, 0))
    assert "leg" in report.difference.columns_only_new
    assert report.difference.new_rows == len(pipelines.open_table(pipeline, "aircraft", "v2").rows())
    assert any("rows        2 →" in line for line in lines(report))


def test_versions_of_a_key_are_compared_one_by_one(tmp_path: Path) -> None:
    pipeline = declared(tmp_path, OTHERS["every version"])
    made(pipeline, "v1", AFTER)
    made(pipeline, "v2", AFTER)
    found = Reprocessing(pipeline, "aircraft").report("v2").difference
    assert found is not None
    assert (found.old_rows, found.same, found.only_new) == (4, 4, 0)


def test_keys_of_another_type_are_other_keys(tmp_path: Path) -> None:
    made(declared(tmp_path, lambda p: p.table(FLIGHTS, keys=["miles"])), "v1", BEFORE)
    pipeline = declared(tmp_path, lambda p: p.table(FLIGHTS, keys=["miles"]))
    made(pipeline, "v2", pa.schema([("tail", pa.string()), ("miles", pa.float64())]))
    found = Reprocessing(pipeline, "aircraft").report("v2").difference
    assert found is not None
    assert (found.only_old, found.only_new, found.same) == (4, 4, 0)


@pytest.mark.parametrize("what", [name for name in OTHERS if name != "another store"])
def test_a_change_of_the_keys_is_not_accepted_into_a_table(what: str, tmp_path: Path) -> None:
    """Rows by the old keys would stay beside those by the new ones, for ever."""
    made(declared(tmp_path, lambda p: p.table(FLIGHTS, keys=["tail"])), "v1", AFTER)
    pipeline = declared(tmp_path, OTHERS[what])
    with pytest.raises(ConfigError, match="reprocess"):
        made(pipeline, "v1", AFTER, accept=True)
    assert pipelines.open_table(pipeline, "aircraft").shape.keys == ("tail",)


def test_a_version_that_other_code_began_is_refused_before_anything_is_noted(tmp_path: Path) -> None:
    """It was no longer built then, and could not be swapped in; and the error told to do what had just been done."""
    pipeline = declared(tmp_path, lambda p: p.table(FLIGHTS, keys=["tail"]))
    work = Reprocessing(pipeline, "aircraft")
    for version in ("v1", "v2"):
        made(pipeline, version, BEFORE)
    work.folder.note_reprocessing({"version": "v2", "from": "v1", "phase": "built"})
    about = work.folder.version("v2").about() or {}
    work.folder.version("v2").describe({**about, "fingerprint": "other"})
    with pytest.raises(ConfigError, match=r"aircraft v2 was begun by other code.*--version with another name"):
        work.build(None, "v2", lambda _: None, lambda _: None)  # type: ignore[arg-type]
    work.swap("v2")
    assert work.folder.current().version == "v2"


def test_a_table_built_anew_from_a_topic_that_was_made_anew_lacks_nothing(tmp_path: Path) -> None:
    """It was behind the old one by records that nobody can read any more, and no `reprocess` would have caught up."""
    pipeline = declared(tmp_path, lambda p: p.table(FLIGHTS, keys=["tail"]))
    work = Reprocessing(pipeline, "aircraft")
    for number, (version, end) in enumerate((("v1", 9), ("v2", 4))):
        made(pipeline, version, BEFORE)
        told = {"flights": {"0": end, "topicId": told_id(number + 1)}}
        for kind in ("offsets", "commits"):
            place = work.folder.version(version).checkpoint(0) / kind
            place.mkdir(parents=True)
            (place / "0").write_text(f"v1\n{{}}\n{json.dumps(told)}")
    assert work.behind("v2") == 0
    work.folder.note_reprocessing({"version": "v2", "from": "v1", "phase": "built"})
    work.swap("v2")
    assert work.folder.current().version == "v2"
    for kind in ("offsets", "commits"):  # the same topic again
        place = work.folder.version("v1").checkpoint(0) / kind / "0"
        place.write_text(place.read_text().replace(told_id(1), told_id(2)))
    assert work.behind("v2", "v1") == 5


def told_id(number: int) -> str:
    return topic_id_text(bytes([number] * 16))


def test_who_follows_the_changes_of_a_table_is_told_of_a_swap(tmp_path: Path) -> None:
    """The other version's table has versions of the same numbers. Changes were left out, without a word."""
    pipeline = declared(tmp_path, lambda p: p.table(FLIGHTS, keys=["tail"]))
    made(pipeline, "v1", BEFORE)
    assert [rows.num_rows for rows in pipelines.changes(pipeline, "aircraft", version="v1")] == [2]
    assert list(pipelines.changes(pipeline, "aircraft", after=0, version="v1")) == []
    with pytest.raises(ConfigError, match=r"aircraft v1 has no version 1: .* from the first on"):
        pipelines.changes(pipeline, "aircraft", after=1)
    made(pipeline, "v2", BEFORE)
    StepFolder(tmp_path, "aircraft").point(Current("v2", "v1"))
    with pytest.raises(ConfigError, match=r"aircraft is v2 now, not v1, .* from the first on"):
        pipelines.changes(pipeline, "aircraft", after=0, version="v1")
    assert [rows.num_rows for rows in pipelines.changes(pipeline, "aircraft", version="v2")] == [2]


@pytest.mark.parametrize("older", [False, True])
def test_a_table_does_not_go_on_with_another_topic(older: bool, tmp_path: Path) -> None:
    """The function's text is the same: the other topic's rows came to those that were there, without a word."""

    def of(topic: pipelines.Topic) -> pipelines.Pipeline:
        return declared(tmp_path, lambda p: p.table(topic, keys=["tail"]))

    made(of(FLIGHTS), "v1", BEFORE)
    place = StepFolder(tmp_path, "aircraft").version("v1")
    if older:  # than what is noted of the source
        place.describe({name: value for name, value in (place.about() or {}).items() if name != "source"})
    with pytest.raises(ConfigError, match="v1 was made with the topic flights of its source, which is trips"):
        made(of(pipelines.Topic("trips")), "v1", BEFORE)
    if not older:
        with pytest.raises(ConfigError, match=r"the key None of its source, which is tail now.*--accept-change"):
            made(of(pipelines.Topic("flights", key="tail")), "v1", BEFORE)
    made(of(FLIGHTS), "v1", BEFORE)
    made(of(pipelines.Topic("trips")), "v1", BEFORE, accept=True)
    made(of(pipelines.Topic("trips")), "v1", BEFORE)


def test_behind_a_cut_of_its_source_a_version_of_an_older_release_reads_another_topic(tmp_path: Path) -> None:
    step = declared(tmp_path, lambda p: p.table(FLIGHTS, keys=["tail"])).step("aircraft")
    about = {"fingerprint": step.fingerprint, "generation": 1, "reads": "flights.v2"}
    assert other_logic(step, about) is None
    assert other_logic(step, {**about, "generation": 0}) is not None
