"""A step is swapped while its run goes on: readers see one version or the other, and the run goes on in the new one."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from files import FileTopics
from pyspark.sql import DataFrame, SparkSession

from duramen import pipelines
from duramen.pipelines.model.folders import BusyError, StepFolder
from duramen.pipelines.run.reprocess import Reprocessing
from duramen.pipelines.run.runner import Runner

pytestmark = pytest.mark.timeout(600)
SECONDS_MAX = 300.0
FLIGHTS = pipelines.Topic("flights", key="tail", schema="miles int")


def doubled(flights: DataFrame) -> DataFrame:
    return flights.selectExpr("tail", "miles * 2 AS km", "_cause")


def tripled(flights: DataFrame) -> DataFrame:
    return flights.selectExpr("tail", "miles * 3 AS km", "_cause")


def declared(folder: Path, logic: Callable[[DataFrame], DataFrame]) -> pipelines.Pipeline:
    pipeline = pipelines.Pipeline("tour", folder=folder / "tables")
    logic.__name__ = "distance"
    pipeline.table(FLIGHTS, keys=["tail"], store="parquet")(logic)
    return pipeline


def quiet(_: object) -> None:
    """Nobody listens."""


class Background(threading.Thread):
    """Something that goes on beside the test; `finish` raises what it ended with."""

    def __init__(self, work: Callable[[], None]) -> None:
        super().__init__(daemon=True)
        self.work = work
        self.failure: BaseException | None = None
        self.start()

    def run(self) -> None:
        try:
            self.work()
        except BaseException as failure:  # noqa: BLE001 - handed to who waits
            self.failure = failure

    def finish(self) -> None:
        self.join(SECONDS_MAX)
        assert not self.is_alive()
        if self.failure is not None:
            raise self.failure


def wait_for(condition: Callable[[], bool], *alive: Background) -> None:
    until = time.monotonic() + SECONDS_MAX
    while not condition():
        assert time.monotonic() < until
        for one in alive:
            if one.failure is not None:
                raise one.failure
        time.sleep(0.02)


def test_a_swap_while_the_run_goes_on(spark: SparkSession, tmp_path: Path) -> None:
    topics = FileTopics(tmp_path / "topics")
    before, after = declared(tmp_path, doubled), declared(tmp_path, tripled)
    topics.append("flights", [(f"N{n}", {"miles": n}) for n in range(1, 20)])
    stop, said = threading.Event(), list[str]()

    def go() -> None:
        runner = Runner(declared(tmp_path, doubled), spark, topics)
        runner.run(
            ["distance"], quiet, said.append, trigger="100 milliseconds", until=stop.is_set, reload=lambda: after
        )

    def factors() -> set[int]:
        rows = pipelines.open_table(before, "distance").rows().to_pylist()
        return {row["km"] // int(row["tail"][1:]) for row in rows}

    seen, longest = list[set[int]](), [0.0]

    def read() -> None:
        while not stop.is_set():
            began = time.monotonic()
            found = factors()
            longest[0] = max(longest[0], time.monotonic() - began)
            if not seen or seen[-1] != found:
                seen.append(found)

    run = Background(go)
    folder = StepFolder(before.folder, "distance")
    wait_for(lambda: (folder.version("v1").progress() or {}).get("batch", -1) >= 0, run)
    reader = Background(read)
    runner = Runner(after, spark, topics)
    work = Reprocessing(after, "distance")
    work.build(runner, "v2", quiet, quiet)
    topics.append("flights", [("N21", {"miles": 21})])  # the run takes it before it lets go, v2 does while it is held
    wait_for(lambda: folder.current().version == "v1" and work.behind("v2") == 1, run, reader)
    took = work.swap("v2", catch_up=lambda: runner.run(["distance"], quiet, quiet, version="v2", available_now=True))
    assert took <= 1.0, "the switch itself: one rename"
    wait_for(lambda: "distance goes on as v2" in said, run, reader)
    topics.append("flights", [("N22", {"miles": 22})])
    wait_for(lambda: pipelines.open_table(before, "distance").rows().num_rows == 21, run, reader)
    wait_for(lambda: seen[-1] == {3}, run, reader)
    with folder.hold(), pytest.raises(BusyError, match="swaps distance now"):
        work.rollback()
    work.rollback()
    wait_for(lambda: any("which other code made" in line for line in said), run, reader)
    wait_for(lambda: seen[-1] == {2}, reader)
    stop.set()
    run.finish()
    reader.finish()
    assert seen == [{2}, {3}, {2}], "one version at a time"
    print(f"the switch took {took * 1000:.1f} ms; the longest read beside it {longest[0] * 1000:.0f} ms")
