"""What `make torture-spark` judges by: it notices what is lost or doubled, and counts that are too low."""

from __future__ import annotations

import inspect
import json
import sys
from collections.abc import Iterator
from pathlib import Path

import arrow_judge
import pyarrow as pa
import pytest
import spark_torture
from arrow_kills import ARROWS, VICTIMS
from arrow_pipeline import COPIED, NUMBERS, PointsConnector
from proof.three_pipelines import PIPELINES
from spark_torture import FAILURES_MIN, PLAYED, PROOF_KILLS_MIN, SPARK, Figures
from tests.worlds.served_node import Served, only_duramen

from duramen.client import Cluster
from duramen.model import TopicPartition
from duramen.pipelines.model.offsets import Offsets
from duramen.pipelines.run.connector import DuramenConnector
from duramen.pipelines.run.stores import STORES
from duramen.wire.batch import build_batch

EACH = arrow_judge.FILL


def enough() -> Figures:
    figures = Figures()
    figures.kills.update({(arrow, victim): 3 for arrow in ARROWS for victim in VICTIMS})
    figures.failures.update({("before-stage", SPARK): 60, ("before-commit", PLAYED): FAILURES_MIN - 60})
    figures.proof.update({(name, "driver"): PROOF_KILLS_MIN for name in PIPELINES})
    return figures


def test_a_count_below_its_figure_is_named() -> None:
    figures = enough()
    assert figures.missing() == []
    arrow = next(iter(ARROWS))
    figures.kills[(arrow, "executor JVM")] -= 1
    figures.failures[("before-stage", SPARK)] -= 1
    figures.proof[("joins", "driver")] -= 1
    assert figures.missing() == [
        f"kills at {arrow}: executor JVM 2 of 3",
        f"failures: {FAILURES_MIN - 1} of {FAILURES_MIN}",
        f"kills of joins: {PROOF_KILLS_MIN - 1} of {PROOF_KILLS_MIN}",
    ]
    assert "TOO FEW failures" in figures.summary()


def test_the_tortured_pipeline_is_opened_as_the_others_are() -> None:
    """The torture itself runs too long to notice in `make test` that it no longer begins."""
    for name in ("read", "write", "write_batch"):
        assert inspect.signature(getattr(PointsConnector, name)) == inspect.signature(getattr(DuramenConnector, name))


@pytest.mark.parametrize(("few", "fails", "code"), [(False, False, 0), (True, False, 1), (False, True, 1)])
def test_the_exit_code_is_that_of_the_worst_part(
    few: bool, fails: bool, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def histories(figures: Figures, *_: object) -> None:
        figures.kills.update(enough().kills)
        figures.proof.update(enough().proof)
        figures.failures.update(enough().failures)
        if few:
            figures.kills[(next(iter(ARROWS)), "node")] = 0
        assert not fails, "a record is there twice"

    for name in ("pipeline", "proof", "long_tests"):
        monkeypatch.setattr(spark_torture, name, lambda *_: None)
    monkeypatch.setattr(spark_torture, "histories", histories)
    monkeypatch.setattr(sys, "argv", ["spark_torture"])
    monkeypatch.setattr(spark_torture.signal, "signal", lambda *_: None)
    with pytest.raises(SystemExit) as ended:
        spark_torture.main()
    assert int(ended.value.code or 0) == code
    assert ("WRONG: histories: a record is there twice" in capsys.readouterr().out) == fails


@pytest.fixture
def judge(tmp_path: Path) -> Iterator[arrow_judge.Judge]:
    """The input is there; nothing was copied."""
    (tmp_path / "points").mkdir()
    node = Served(tmp_path)
    node.start()
    try:
        found = arrow_judge.Judge(tmp_path, node.bootstrap)
        found.fill(2 * EACH)
        yield found
    finally:
        node.kill()


def copy(judge: arrow_judge.Judge, *ranges: tuple[int, int, int]) -> None:
    """Append input records (partition, first, end), to the partition of the same number."""
    with Cluster(judge.bootstrap) as cluster:
        for partition, first, end in ranges:
            rows = [(None, b"%d:%d" % (partition, offset), (), 1) for offset in range(first, end)]
            cluster.produce(TopicPartition(COPIED, partition), build_batch(rows))


def keep(judge: arrow_judge.Judge, batch: int, *rows: tuple[int, int, str]) -> None:
    """Put rows (partition and offset of the copied topic, number) into the table."""
    step = judge.pipeline.step("kept")
    names = ("number", "_topic", "_partition", "_offset")
    columns = ([row[2] for row in rows], [COPIED] * len(rows), [row[0] for row in rows], [row[1] for row in rows])
    types = (pa.string(), pa.string(), pa.int32(), pa.int64())
    arrays = {n: pa.array(c, t) for n, c, t in zip(names, columns, types, strict=True)}
    table = pa.table({**arrays, "_deleted": pa.repeat(False, len(rows))})
    store = STORES[step.store](
        judge.checkpoint("kept").parent / "table", step.shape, pa.schema([("number", pa.string())])
    )
    store.apply(table, "query", batch, Offsets())


def plan(judge: arrow_judge.Judge, step: str, topic: str, end: int, finished: bool) -> None:
    """The first batch of a checkpoint, as Spark writes it."""
    for kind in ("offsets", "commits") if finished else ("offsets",):
        (judge.checkpoint(step) / kind).mkdir(parents=True, exist_ok=True)
        ends = {topic: dict.fromkeys(map(str, range(arrow_judge.PARTITIONS)), end)}
        lines = ["v1", "{}", json.dumps(ends)] if kind == "offsets" else ["v1", "{}"]
        (judge.checkpoint(step) / kind / "0").write_text("\n".join(lines))


@only_duramen
def test_the_judge_notices_a_lost_and_a_doubled_record_of_the_topic(judge: arrow_judge.Judge) -> None:
    plan(judge, "copy", NUMBERS, EACH, finished=True)
    copy(judge, (0, 0, EACH), (1, 0, EACH - 1))
    with pytest.raises(AssertionError, match=rf"{NUMBERS}-1: lost \[{EACH - 1}\]"):
        judge.look("a kill")
    copy(judge, (1, EACH - 1, EACH))
    judge.look("a kill")
    copy(judge, (0, 7, 8))
    with pytest.raises(AssertionError, match=r".0:7' is there twice"):
        judge.look("a kill")


@only_duramen
def test_the_judge_notices_a_record_that_nobody_planned(judge: arrow_judge.Judge) -> None:
    plan(judge, "copy", NUMBERS, 5, finished=False)
    copy(judge, (0, 0, 6))
    with pytest.raises(AssertionError, match=rf"{NUMBERS}-0: nobody planned \[5\]"):
        judge.look("a kill")


@only_duramen
def test_the_judge_notices_what_is_wrong_with_the_table(judge: arrow_judge.Judge) -> None:
    plan(judge, "copy", NUMBERS, 3, finished=True)
    copy(judge, (0, 0, 3), (1, 0, 3))
    keep(judge, 0, (0, 0, "0:0"), (0, 1, "0:1"))
    judge.look("a kill")
    plan(judge, "kept", COPIED, 2, finished=True)
    with pytest.raises(AssertionError, match=f"{COPIED}-1: 2 are in the checkpoint, 0 in the table"):
        judge.look("a kill")
    keep(judge, 1, (1, 0, "1:0"), (1, 1, "1:2"))
    with pytest.raises(AssertionError, match=rf"{COPIED}-1: the table differs at \[1\]"):
        judge.look("a kill")


@only_duramen
def test_a_doubled_row_of_the_table_is_noticed(judge: arrow_judge.Judge) -> None:
    copy(judge, (0, 0, 3))
    plan(judge, "copy", NUMBERS, 3, finished=False)
    keep(judge, 0, (0, 0, "0:0"), (0, 0, "0:0"))
    with pytest.raises(AssertionError, match=f"{COPIED}-0@0 is in the table twice"):
        judge.look("a kill")


@only_duramen
def test_in_the_end_everything_has_to_be_there(judge: arrow_judge.Judge) -> None:
    copy(judge, (0, 0, EACH), (1, 0, EACH - 1))
    with pytest.raises(AssertionError, match="lost in the end"):
        judge.end()
    copy(judge, (1, EACH - 1, EACH))
    rows = [(partition, offset, f"{partition}:{offset}") for partition in (0, 1) for offset in range(EACH)]
    keep(judge, 0, *rows[:-1])
    with pytest.raises(AssertionError, match=f"table: lost .'1:{EACH - 1}'"):
        judge.end()
    keep(judge, 1, rows[-1])
    assert judge.end().startswith(f"{2 * EACH:,} records in")
