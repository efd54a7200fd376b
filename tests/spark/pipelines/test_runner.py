"""Pipelines on a real Spark, over topics that are folders: what runs needs no node."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path

import pytest
from files import FileTopics
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from duramen import pipelines
from duramen.errors import ConfigError
from duramen.pipelines.model.folders import StepFolder
from duramen.pipelines.model.late_rows import LateRows, counted
from duramen.pipelines.model.progress import BatchProgress
from duramen.pipelines.run import job
from duramen.pipelines.run.runner import QueryFailedError, Runner
from duramen.pipelines.run.table_reader import frame
from duramen.pipelines.tables.changelog import TRACE

pytestmark = pytest.mark.timeout(600)

FLIGHTS = pipelines.Topic("flights", key="tail", schema="carrier string, dest string, delay int")


def declared(folder: Path) -> pipelines.Pipeline:
    pipeline = pipelines.Pipeline("tour", folder=folder / "tables")

    @pipeline.table(FLIGHTS, keys=["tail"])
    def aircraft(flights: DataFrame) -> DataFrame:
        return flights.select("tail", "carrier", "dest", F.col("_cause.timestamp").alias("seen"), "_cause")

    @pipeline.history(FLIGHTS)
    def tails(flights: DataFrame) -> DataFrame:
        return flights.dropDuplicates(["tail"]).select("tail", "_cause")

    @pipeline.table(FLIGHTS, keys=["carrier"], aggregate=True, store="parquet")
    def delays(flights: DataFrame) -> DataFrame:
        landed = flights.where("delay is not null")
        return landed.groupBy("carrier").agg(
            F.count("*").alias("flights"), F.sum("delay").alias("minutes"), pipelines.latest_cause()
        )

    return pipeline


def flight(carrier: str, dest: str, delay: int | None) -> dict[str, object]:
    return {"carrier": carrier, "dest": dest, "delay": delay}


def moment(offset: int) -> datetime:
    """When a record was written, as `FileTopics` has it."""
    return datetime.fromtimestamp(1_700_000_000 + offset, UTC)


def run(runner: Runner, *names: str) -> list[BatchProgress]:
    told: list[BatchProgress] = []
    runner.run(names, told.append, lambda said: None, available_now=True)
    return told


def test_two_tables_follow_a_topic(spark: SparkSession, tmp_path: Path) -> None:
    topics = FileTopics(tmp_path / "topics")
    pipeline = declared(tmp_path)
    runner = Runner(pipeline, spark, topics)
    topics.append("flights", [("N1", flight("UA", "IAH", 5)), ("N2", flight("AA", "MIA", -3))])
    topics.append("flights", [("N1", flight("UA", "ORD", 7)), ("N2", None), ("N3", flight("B6", "BQN", None))])
    told = run(runner, "aircraft", "delays")

    aircraft = pipelines.open_table(pipeline, "aircraft")
    rows = sorted(aircraft.rows().to_pylist(), key=lambda row: row["tail"])
    place = {"_topic": "flights", "_partition": 0}
    assert rows == [
        {"tail": "N1", "carrier": "UA", "dest": "ORD", "seen": moment(2), **place, "_offset": 2},
        {"tail": "N3", "carrier": "B6", "dest": "BQN", "seen": moment(4), **place, "_offset": 4},
    ]
    assert sum(progress.rows for progress in told if progress.step == "aircraft") == 5
    assert "aircraft v1" in told[0].line()
    delays = pipelines.open_table(pipeline, "delays")
    assert {row["carrier"]: (row["flights"], row["minutes"]) for row in delays.rows().to_pylist()} == {
        "UA": (2, 12),
        "AA": (1, -3),
    }
    changes = [row for rows in pipelines.changes(pipeline, "aircraft") for row in rows.to_pylist()]
    assert [(row["tail"], row["_deleted"], row["_version"]) for row in sorted(changes, key=lambda r: r["_offset"])] == [
        ("N1", False, 0),
        ("N2", False, 0),
        ("N1", False, 1),
        ("N2", True, 1),
        ("N3", False, 1),
    ]

    topics.append("flights", [("N1", flight("UA", "SFO", 1))])
    run(runner, "aircraft", "delays")
    assert {row["tail"]: row["dest"] for row in aircraft.rows().to_pylist()} == {"N1": "SFO", "N3": "BQN"}
    assert {row["carrier"]: row["minutes"] for row in delays.rows().to_pylist()} == {"UA": 13, "AA": -3}
    assert not (tmp_path / "tables" / "aircraft" / "v1" / "checkpoint-0" / "state").exists()


@pytest.mark.parametrize("point", ["batch planned", "batch computed", "batch applied"])
def test_a_batch_that_was_interrupted_is_applied_once(point: str, spark: SparkSession, tmp_path: Path) -> None:
    topics = FileTopics(tmp_path / "topics")
    pipeline = declared(tmp_path)
    topics.append("flights", [("N1", flight("UA", "IAH", 5))])
    topics.append("flights", [("N1", flight("UA", "ORD", 7))])
    passed = []

    def fail_once(name: str) -> None:
        passed.append(name)
        if passed.count(point) == 2 and name == point:
            raise RuntimeError("cut off here")

    with pytest.raises(QueryFailedError, match="cut off here"):
        run(Runner(pipeline, spark, topics, fail_once), "delays")
    run(Runner(pipeline, spark, topics), "delays")
    store = pipelines.open_table(pipeline, "delays")
    assert [(row["flights"], row["minutes"]) for row in store.rows().to_pylist()] == [(2, 12)]
    assert [commit.batch for commit in store.commits()] == [0, 1]


def test_a_step_that_remembers_keys_goes_on_behind_a_kill(spark: SparkSession, tmp_path: Path) -> None:
    """What Spark keeps of a batch is written by computing it: also where the table has the batch."""
    topics = FileTopics(tmp_path / "topics")
    pipeline = declared(tmp_path)
    topics.append("flights", [("N1", flight("UA", "IAH", 5))])

    def fail(name: str) -> None:
        if name == "batch applied":
            raise RuntimeError("cut off here")

    with pytest.raises(QueryFailedError, match="cut off here"):
        run(Runner(pipeline, spark, topics, fail), "tails")
    topics.append("flights", [("N1", flight("UA", "ORD", 7)), ("N2", flight("UA", "ORD", 7))])
    run(Runner(pipeline, spark, topics), "tails")
    assert sorted(row["tail"] for row in pipelines.open_table(pipeline, "tails").rows().to_pylist()) == ["N1", "N2"]
    # By this a step is known that cannot go on behind a cut.
    assert (tmp_path / "tables" / "tails" / "v1" / "checkpoint-0" / "state").is_dir()


def test_a_column_of_the_source_that_has_another_type_is_other_logic(spark: SparkSession, tmp_path: Path) -> None:
    """The table's own columns need not tell: the sum of what was a number of another type came to that of before."""
    topics = FileTopics(tmp_path / "topics")

    def of(schema: str) -> Runner:
        pipeline = pipelines.Pipeline("tour", folder=tmp_path / "tables")

        @pipeline.history(pipelines.Topic("flights", key="tail", schema=schema), store="parquet")
        def seen(flights: DataFrame) -> DataFrame:
            return flights.select("tail", F.col("n").cast("string").alias("told"), "_cause")

        return Runner(pipeline, spark, topics)

    def told(runner: Runner) -> list[str]:
        return sorted(pipelines.open_table(runner.pipeline, "seen").rows()["told"].to_pylist())

    before = of("n double, s struct<a: int, b: array<int>>")
    topics.append("flights", [("N1", {"n": 1})])
    run(before, "seen")
    topics.append("flights", [("N2", {"n": 2})])
    for schema, column in {
        "n int, s struct<a: int, b: array<int>>": "n of its source as double, which is int",
        "n double, s struct<a: int, b: array<string>>": "s of its source as struct",
    }.items():
        with pytest.raises(ConfigError, match=f"seen v1 was made with the column {column}.*--accept-change"):
            run(of(schema), "seen")
    more = of("n  double, s struct<a: int, b: array<int>, c: int>, t string")
    run(more, "seen")
    assert told(more) == ["1.0", "2.0"], "further columns are no other logic"
    topics.append("flights", [("N3", {"n": 3})])
    of("n int").run(["seen"], lambda _: None, lambda _: None, available_now=True, accept=True)
    assert told(more) == ["1.0", "2.0", "3"]
    with pytest.raises(ConfigError, match="n of its source as int, which is double"):
        run(more, "seen")


@pytest.mark.parametrize("store", ["delta", "parquet"])
def test_columns_that_come_or_become_wider_go_on(store: str, spark: SparkSession, tmp_path: Path) -> None:
    topics = FileTopics(tmp_path / "topics")

    def of(schema: str, *columns: str) -> Runner:
        pipeline = pipelines.Pipeline("tour", folder=tmp_path / "tables")

        def seen(flights: DataFrame) -> DataFrame:
            return flights.select("*")

        def seen_anew(flights: DataFrame) -> DataFrame:
            return flights.select("tail", *columns, "_cause")

        seen_anew.__name__ = "seen"
        topic = pipelines.Topic("flights", key="tail", schema=schema)
        pipeline.table(topic, keys=["tail"], store=store)(seen_anew if columns else seen)
        return Runner(pipeline, spark, topics)

    def rows(runner: Runner) -> list[tuple[object, ...]]:
        table = pipelines.open_table(runner.pipeline, "seen")
        found = sorted(map(tuple, frame(table, spark).drop(*TRACE.names).collect()))
        names = [name for name in table.rows().column_names if name not in TRACE.names]
        assert sorted(tuple(row[name] for name in names) for row in table.rows().to_pylist()) == found
        return found

    topics.append("flights", [("N1", {"n": 1, "x": 0.5, "b": 1}), ("N2", {"n": 2})])
    run(of("n int, x float, b tinyint"), "seen")
    topics.append("flights", [("N2", {"n": 2**40, "x": 0.1, "b": 300, "c": "new"})])
    wider = of("c string, n bigint, x double, b int")
    run(wider, "seen")
    assert rows(wider) == [("N1", 1, 0.5, 1, None), ("N2", 2**40, 0.1, 300, "new")]
    topics.append("flights", [("N3", {"n": 3, "d": 7})])
    more = of("c string, n bigint, x double, b int, d int", "d", "n", "x", "b", "c")
    with pytest.raises(ConfigError, match=r"other logic .*now .adds d int32.: .*reprocess.*; --accept-change goes on"):
        run(more, "seen")
    more.run(["seen"], lambda _: None, lambda _: None, available_now=True, accept=True)
    assert rows(more)[1:] == [("N2", 2**40, 0.1, 300, "new", None), ("N3", 3, None, None, None, 7)]
    with pytest.raises(ConfigError, match=r"now .changes b int32 to string.: [^;]*reprocess[^;]*old one$"):
        run(of("n bigint, x double, b string, c string, d int", "d", "n", "x", "b", "c"), "seen")


def test_what_is_refused_leaves_a_table_to_the_code_that_made_it(spark: SparkSession, tmp_path: Path) -> None:
    """With --accept-change and other columns it was noted as the new code's, before it was refused: the old one was
    refused then, too."""
    topics = FileTopics(tmp_path / "topics")

    def of(column: str) -> Runner:
        pipeline = pipelines.Pipeline("tour", folder=tmp_path / "tables")

        def seen(flights: DataFrame) -> DataFrame:
            return flights.select("tail", column, "_cause")

        def seen_anew(flights: DataFrame) -> DataFrame:
            return flights.select("tail", column, "_cause").where("true")

        chosen = seen if column == "carrier" else seen_anew
        chosen.__name__ = "seen"
        pipeline.history(FLIGHTS, store="parquet")(chosen)
        return Runner(pipeline, spark, topics)

    topics.append("flights", [("N1", flight("UA", "IAH", 11))])
    run(of("carrier"), "seen")
    topics.append("flights", [("N2", flight("AA", "MIA", 33))])
    with pytest.raises(ConfigError, match=r"the code gives, which drops carrier string: .*reprocess"):
        of("dest").run(["seen"], lambda _: None, lambda _: None, available_now=True, accept=True)
    run(of("carrier"), "seen")
    assert len(pipelines.open_table(of("carrier").pipeline, "seen").rows()) == 2


def test_rows_that_come_after_the_watermark_are_counted_once(spark: SparkSession, tmp_path: Path) -> None:
    """Also of a batch whose run is killed after the table's commit, and so repeats it; by groups where it sums up."""
    topics = FileTopics(tmp_path / "topics")
    pipeline = pipelines.Pipeline("tour", folder=tmp_path / "tables")
    landings = pipelines.Topic("landings", key="tail", schema="at timestamp")

    @pipeline.table(landings, keys=["hour"], aggregate=True, store="parquet")
    def hourly(landings: DataFrame) -> DataFrame:
        grouped = landings.withWatermark("at", "30 minutes").groupBy(F.window("at", "1 hour"))
        return grouped.agg(F.count("*").alias("landed"), pipelines.latest_cause()).select(
            F.col("window.start").alias("hour"), "landed", "_cause"
        )

    @pipeline.stream(landings, to="once", key="tail")
    def once(landings: DataFrame) -> DataFrame:
        return landings.withWatermark("at", "30 minutes").dropDuplicatesWithinWatermark(["tail"])

    for moments in (["10:00", "12:00"], ["10:05", "12:30"], ["08:00", "08:01", "09:00", "13:10"], ["13:20"]):
        topics.append("landings", [(f"N{at}", {"at": f"2026-01-01T{at}:00Z"}) for at in moments])
    applied: list[str] = []

    def fail(name: str) -> None:
        applied.append(name)
        if name == "batch applied" and applied.count(name) == 3:
            raise RuntimeError("cut off here")

    with pytest.raises(QueryFailedError, match="cut off here"):
        run(Runner(pipeline, spark, topics, fail), "hourly")
    assert counted(StepFolder(pipeline.folder, "hourly").version("v1")) == LateRows(0, 2, 2), "before Spark's commit"
    told = run(Runner(pipeline, spark, topics), "hourly", "once")
    late = {step: [one.late for one in told if one.step == step] for step in ("hourly", "once")}
    # Spark compares with the watermark of the batch before. Two records of one hour are one row of sums by then.
    assert late["hourly"][0] == 2
    assert sum(filter(None, late["once"])) == 3
    last = {one.step: one for one in told}
    assert [(last[step].late_total, last[step].late_uncounted) for step in late] == [(2, 0), (3, 0)]
    assert (last["hourly"].watermark or "") > "2026-01-01T12:00"
    table = pipelines.open_table(pipeline, "hourly").rows().to_pylist()
    assert {row["hour"].hour: row["landed"] for row in table} == {10: 2, 12: 2, 13: 2}


def test_a_program_runs_a_pipeline_again_and_again(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the session that is there, in another thread too; Ctrl-C leaves no query and no lock."""
    topics = FileTopics(tmp_path / "topics")
    monkeypatch.setattr(job, "DuramenConnector", lambda _bootstrap: topics)
    pipeline = declared(tmp_path)
    topics.append("flights", [("N1", flight("UA", "IAH", 5))])
    first = pipeline.run(["aircraft"])["aircraft"]
    assert (first.batches, first.rows, first.written, first.late) == (1, 1, 1, None)
    topics.append("flights", [("N2", flight("UA", "IAH", 5))])

    def interrupted(_: BatchProgress) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pipeline.run(["aircraft"], once=False, spark=spark, on_batch=interrupted)
    assert spark.streams.active == []
    topics.append("flights", [("N3", flight("UA", "IAH", 5))])
    told: list[BatchProgress] = []

    def once(batch: BatchProgress) -> None:
        told.append(batch)
        pipeline.stop()

    with ThreadPoolExecutor(1) as pool:
        pool.submit(pipeline.run, ["aircraft"], once=False, on_batch=once).result(100)
    assert [batch.batch for batch in told] == [2]
    assert sorted(row["tail"] for row in pipelines.open_table(pipeline, "aircraft").rows().to_pylist()) == [
        "N1",
        "N2",
        "N3",
    ]
    assert spark.range(1).count() == 1, "the session is the caller's"
