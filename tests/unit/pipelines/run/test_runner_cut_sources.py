"""A step whose topic is swapped reads it to the cut and goes on behind it; one that swaps tells the node first."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest

from duramen import pipelines
from duramen.errors import ConfigError, DeadlineError, ErrorCode, KafkaError, NetworkError
from duramen.pipelines.model.folders import BusyError, Current, StepFolder
from duramen.pipelines.model.offsets import Offsets
from duramen.pipelines.model.swap_chain import readings
from duramen.pipelines.run.connector import CHOOSES_TOPICS, DuramenConnector
from duramen.pipelines.run.failures import QueryFailedError
from duramen.pipelines.run.queries import Queries
from duramen.pipelines.run.query_report import QueryReport
from duramen.pipelines.run.reprocess import Reprocessing
from duramen.pipelines.run.runner import Runner, Terms, _Loop, nowhere
from duramen.pipelines.run.step_plan import StepPlan
from duramen.pipelines.run.table_batches import TableBatches
from duramen.swaps import CutOver

CUT = CutOver("flights", {0: 7, 1: 3}, "flights.v2", {0: 5, 1: 2})
Ends = dict[int, int]


class Query:
    """A streaming query that does what the test tells it, in its checkpoint as Spark would."""

    def __init__(self, plan: StepPlan) -> None:
        self.plan = plan
        self.isActive = True
        self.recentProgress: list[Any] = []
        self.status = {"isTriggerActive": False}
        self.as_it_stops: Callable[[], None] = lambda: None

    def batch(self, ends: Ends, done: bool = True) -> None:
        for kind in ("offsets", "commits") if done else ("offsets",):
            place = self.plan.checkpoint / kind
            place.mkdir(parents=True, exist_ok=True)
            told = json.dumps({self.plan.readings[0].topic: {str(p): at for p, at in ends.items()}})
            (place / str(len(list(place.iterdir())))).write_text(f"v1\n{{}}\n{told}")

    def stop(self) -> None:
        self.as_it_stops()
        self.as_it_stops = lambda: None
        self.isActive = False

    def exception(self) -> None:
        return None


class StepRunner(Runner):
    """A runner whose queries, and whose node, are ours."""

    def __init__(self, pipeline: pipelines.Pipeline) -> None:
        self.pipeline = pipeline
        self.connector = self  # type: ignore[assignment]
        self.chain: Sequence[CutOver] = ()
        self.away: list[Exception] = []
        self.published: list[Sequence[CutOver]] = []
        self.queries: list[Query] = []
        self.sinks: dict[str, int] = {}
        self.doing = nowhere
        self.spark = MagicMock()

    def written(self, sink: str) -> int | None:
        return self.sinks.get(sink)

    def cuts(self, topic: pipelines.Topic) -> Sequence[CutOver]:
        return self.chain

    def publish(self, topic: str, cuts: Sequence[CutOver]) -> None:
        if self.away:
            raise self.away.pop()
        self.published.append(cuts)

    def plan(self, name: str, version: str | None = None, upto: Offsets | None = None) -> StepPlan:
        step = self.pipeline.step(name)
        place = self.folder(name).version(version or self.folder(name).current().version)
        return StepPlan(step, place, self.readings(step, place), MagicMock())

    def _writer(self, plan: StepPlan, written: Any) -> Any:
        def start() -> Query:
            self.queries.append(Query(plan))
            return self.queries[-1]

        writer = MagicMock()
        writer.queryName.return_value.option.return_value.trigger.return_value.start = start
        return writer


@pytest.fixture
def runner(tmp_path: Path) -> StepRunner:
    pipeline = pipelines.Pipeline("tour", folder=tmp_path)

    @pipeline.stream(pipelines.Topic("flights"), to="late")
    def late(flights: Any) -> Any:
        return flights

    return StepRunner(pipeline)


def looping(runner: StepRunner, said: list[str] | None = None, **terms: Any) -> _Loop:
    given: dict[str, Any] = {"version": None, "available_now": False, "trigger": "1 second", "accept": False, **terms}
    return _Loop(runner, Terms(**given), lambda _: None, (said if said is not None else []).append)


def look(loop: _Loop) -> None:
    """One turn in which the node is asked for cuts."""
    loop._next_cuts = 0.0
    loop.turn()


def generation(runner: StepRunner) -> int:
    found: int = (runner.folder("late").version("v1").about() or {})["generation"]
    return found


def test_a_stream_that_lost_its_checkpoint_is_told_what_to_do(runner: StepRunner) -> None:
    """Who deleted the folder was told by the sink to give it another sinkId, which a pipeline cannot."""
    runner.sinks["tour.late.v1.0"] = 11
    with looping(runner) as loop, pytest.raises(ConfigError, match=r"late v1 .* has written 12 batches.*another name"):
        loop.begin("late")
    assert runner.folder("late").version("v1").about() is None
    runner.sinks["tour.late.v2.0"] = 3
    runner.folder("late").version("v1").describe({"to": "late"})
    with pytest.raises(ConfigError, match=r"late v2 .* has written 4 batches.*take another --version"):
        runner.start(runner.plan("late", "v2"), True, "")
    (runner.folder("late").path / "v1" / "about.json").unlink()
    checkpoint = runner.folder("late").version("v1").checkpoint(0)
    checkpoint.mkdir()
    (checkpoint / "metadata").write_text("{}")
    with looping(runner) as loop:
        loop.begin("late")
    assert len(runner.queries) == 1


# ---- reading to a cut ------------------------------------------------------------------------------------------------


def test_a_query_is_begun_again_with_the_cut_and_then_behind_it(runner: StepRunner) -> None:
    with looping(runner) as loop:
        loop.begin("late")
        runner.queries[0].batch({0: 4, 1: 3})
        look(loop)
        assert len(runner.queries) == 1
        runner.chain = [CUT]
        look(loop)
        first, second = runner.queries
        assert not first.isActive
        assert second.plan.readings[0].until == Offsets({("flights", 0): 7, ("flights", 1): 3})
        look(loop)
        assert runner.queries == [first, second], "it goes on to the cut"
        second.batch({0: 7, 1: 3})
        look(loop)
        third = runner.queries[2]
        assert not second.isActive
        assert third.plan.readings[0].topic == "flights.v2"
        assert third.plan.readings[0].start == Offsets({("flights.v2", 0): 5, ("flights.v2", 1): 2})
        assert third.plan.readings[0].until is None
        assert third.plan.checkpoint != second.plan.checkpoint
        look(loop)
        assert len(runner.queries) == 3


@pytest.mark.parametrize("done", [False, True])
def test_a_batch_that_was_begun_behind_the_cut_is_refused_by_name(runner: StepRunner, done: bool) -> None:
    with looping(runner) as loop:
        loop.begin("late")
        (query,) = runner.queries
        query.batch({0: 7, 1: 3})  # just up to the cut, and the next one while it is stopped
        query.as_it_stops = lambda: query.batch({0: 9, 1: 4}, done)
        runner.chain = [CUT]
        with pytest.raises(QueryFailedError, match="late v1 has begun to read 3 records of flights that lie after"):
            look(loop)
    assert generation(runner) == 0
    with looping(runner) as loop, pytest.raises(QueryFailedError, match="after its cut"):
        loop.begin("late")
    (query.plan.checkpoint / "commits" / "1").touch()
    with looping(runner) as loop, pytest.raises(QueryFailedError, match="after its cut"):
        loop.begin("late")
    assert len(runner.queries) == 1
    with runner.folder("late").version("v1").locked():
        """Nobody holds it."""


def test_a_batch_that_was_cut_off_is_finished_before_the_step_goes_on(runner: StepRunner) -> None:
    with looping(runner) as loop:
        loop.begin("late")  # before the swap, so that it reads the old topic
    runner.queries.clear()
    runner.chain = [CUT]
    with looping(runner) as loop:
        loop.begin("late")
        runner.queries[0].batch({0: 7, 1: 3})
        runner.queries[0].as_it_stops = lambda: runner.queries[0].batch({0: 7, 1: 3}, done=False)
        look(loop)
        assert (len(runner.queries), generation(runner)) == (2, 0)
        assert runner.queries[1].plan.readings[0].topic == "flights"
        (runner.queries[1].plan.checkpoint / "commits" / "1").touch()
        look(loop)
        assert (len(runner.queries), generation(runner)) == (3, 1)


def test_a_step_in_the_middle_of_a_chain_has_a_start_and_an_end() -> None:
    back = CutOver("flights.v2", {0: 9}, "flights", {0: 8})
    found = readings("late", "flights", [CUT, back], {"generation": 0, "first_generation": 0})
    assert [each.topic for each in found] == ["flights", "flights.v2", "flights"]
    assert (found[1].start.end("flights.v2", 0), found[1].until) == (5, Offsets({("flights.v2", 0): 9}))
    assert (found[2].start, found[2].until) == (Offsets({("flights", 0): 8}), None)
    assert found[1].beyond(Offsets({("flights.v2", 0): 11, ("flights", 0): 99})) == 2
    assert found[1].end(Offsets({("flights.v2", 0): 7})) == Offsets({("flights.v2", 0): 7})
    assert found[1].end(Offsets({("flights.v2", 0): 10})) == found[1].until
    assert found[2].end(Offsets({("flights", 0): 10})) == Offsets({("flights", 0): 10})
    (last,) = readings("late", "flights", [CUT, back], {})
    assert (last.generation, last.topic, last.start) == (2, "flights", Offsets()), "who begins now reads all of it"


def test_sums_do_not_go_on_behind_a_cut(runner: StepRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    @runner.pipeline.table(pipelines.Topic("flights"), keys=["tail"], aggregate=True)
    def miles(flights: Any) -> Any:
        return flights

    store = MagicMock()
    store.last.return_value.sink = "tour.miles.v1.of-the-first-topic"
    runner.chain = [CUT]
    version = runner.folder("miles").version("v1")
    version.describe({"generation": 1, "first_generation": 0})
    plan = runner.plan("miles")
    plan.checkpoint.mkdir(parents=True)
    (plan.checkpoint / "metadata").write_text('{"id":"of-the-second"}')
    with pytest.raises(ConfigError, match="sums up, and its checkpoint is gone, or before a swap: build it again"):
        TableBatches(runner.pipeline, plan, store, QueryReport(), nowhere, lambda _: None).apply(MagicMock(), 0)
    store.apply.assert_not_called()


@pytest.mark.parametrize("remembers", [False, True])
def test_what_a_function_remembers_is_not_lost_behind_a_cut_without_a_word(runner: StepRunner, remembers: bool) -> None:
    """`dropDuplicates` began anew in the new topic: a history had keys twice."""
    version = runner.folder("late").version("v1")
    with looping(runner) as loop:
        loop.begin("late")
        (version.checkpoint(0) / ("state" if remembers else "sources")).mkdir(parents=True)
        runner.chain = [CUT]
        look(loop)
        runner.queries[-1].batch(CUT.until)
        told = r"late v1 remembers .* before the cut to flights.v2.*--accept-change"
        with pytest.raises(ConfigError, match=told) if remembers else nullcontext():
            look(loop)
        assert len(runner.queries) == (2 if remembers else 3)
    with looping(runner, accept=True) as loop:
        loop.begin("late")
    assert runner.queries[-1].plan.readings[0].topic == "flights.v2"
    checkpoint = version.checkpoint(1)
    checkpoint.mkdir(exist_ok=True)
    (checkpoint / "metadata").write_text("{}")
    with looping(runner) as loop:
        loop.begin("late")


def test_the_batches_of_an_effect_are_counted_on_behind_a_cut(runner: StepRunner) -> None:
    """Spark counts those of the new topic from 0: who had done as many took them for done."""
    done: list[int] = []

    @runner.pipeline.effect(pipelines.Topic("flights"))
    def mail(flights: Any, batch: int) -> None:
        done.append(batch)

    version = runner.folder("mail").version("v1")
    for generation in range(2):
        plan = runner.plan("mail")
        Queries._writer(runner, plan, QueryReport())
        (effect,) = plan.rows.writeStream.foreachBatch.call_args.args  # type: ignore[attr-defined]
        for batch in range(3):
            effect(None, batch)
            Query(plan).batch({0: batch})
        version.describe({"generation": generation + 1, "first_generation": 0})
        runner.chain = [CUT]
    assert done == list(range(6))


def test_a_table_that_is_built_anew_from_behind_a_cut_contains_what_lies_before_it(runner: StepRunner) -> None:
    """What sums up stays before the cut: it had records of the old topic that a version of the new one never has, and
    could not be swapped for it."""
    runner.folder("late").point(Current("v2", "v1", (CutOver("late", {0: 7}, "late.v2", {0: 5}),)))

    @runner.pipeline.table(runner.pipeline.output("late"), keys=["tail"], aggregate=True)
    def miles(late: Any) -> Any:
        return late

    work = Reprocessing(runner.pipeline, "miles")

    def version(name: str, first: int, generation: int, **ends: int) -> None:
        place = work.folder.version(name)
        place.describe({"first_generation": first, "generation": generation})
        for topic, end in ends.items():
            for kind in ("offsets", "commits"):
                folder = place.checkpoint(0 if topic == "late" else 1) / kind
                folder.mkdir(parents=True, exist_ok=True)
                (folder / str(len(list(folder.iterdir())))).write_text(
                    f"v1\n{{}}\n{json.dumps({topic.replace('_', '.'): {'0': end}})}"
                )

    version("v1", 0, 1, late=7)
    version("v2", 1, 1)
    assert work.behind("v2") == 5
    version("v2", 1, 1, late_v2=4)
    assert work.behind("v2") == 1
    version("v2", 1, 1, late_v2=6)
    assert work.behind("v2") == 0
    version("v1", 0, 1, late_v2=8)
    assert work.behind("v2") == 2, "it went on behind the cut"


def test_the_source_is_told_where_to_begin_behind_a_cut_and_where_to_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "duramen.pipelines.run.connector.PipelineNode",
        lambda _: MagicMock(ends=lambda t: Offsets({(t, 0): 9, (t, 1): 9})),
    )
    spark, start = MagicMock(), Offsets({("flights.v2", 0): 5})
    topic = pipelines.Topic("flights.v2", options={"StartingOffsets": "latest", "maxOffsetsPerTrigger": "10"})

    def options(start: Offsets, until: Offsets | None) -> dict[str, str]:
        DuramenConnector("node:1").read(spark, topic, start, until)
        found: dict[str, str] = spark.readStream.format.return_value.options.call_args.kwargs
        return found

    bounded = options(start, Offsets({("flights.v2", 0): 8}))
    assert json.loads(bounded["startingOffsets"]) == {"flights.v2": {"0": 5, "1": -2}}
    assert "StartingOffsets" not in bounded, "a group that began at the end goes on at the cut"
    assert json.loads(bounded["untilOffsets"]) == {"flights.v2": {"0": 8}}
    assert bounded["maxOffsetsPerTrigger"] == "10"
    free = options(Offsets(), None)
    assert free["StartingOffsets"] == "latest"
    assert "untilOffsets" not in free


@pytest.mark.parametrize("option", ["assign", "subscribe", "SubscribePattern"])
def test_options_may_say_which_topics_are_read(option: str) -> None:
    spark = MagicMock()
    DuramenConnector("node:1").read(spark, pipelines.Topic("flights", options={option: "x"}), Offsets(), None)
    given = spark.readStream.format.return_value.options.call_args.kwargs
    assert {name: value for name, value in given.items() if name.lower() in CHOOSES_TOPICS} == {option: "x"}


# ---- telling the node ------------------------------------------------------------------------------------------------


def test_nothing_is_written_before_the_node_knows_the_cuts(runner: StepRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("duramen.pipelines.run.failures.RESTART_SECONDS", (0.0,))
    folder = runner.folder("late")
    folder.version("v2").describe({"fingerprint": runner.pipeline.step("late").fingerprint})
    folder.point(Current("v2", "v1", (CUT,)))
    said: list[str] = []
    passing = [NetworkError("gone"), DeadlineError("not done"), KafkaError(ErrorCode.NOT_CONTROLLER)]
    runner.away = [*passing]
    with looping(runner, said) as loop:
        loop.begin("late")
        assert (runner.published, len(runner.queries), len(said)) == ([(CUT,)], 1, 3)
    runner.away = [NetworkError("gone")] * 100
    with looping(runner) as loop, pytest.raises(QueryFailedError, match="late: gone"):
        loop.begin("late")
    runner.away = [KafkaError(ErrorCode.TOPIC_AUTHORIZATION_FAILED, "not allowed"), NetworkError("not asked again")]
    with looping(runner) as loop, pytest.raises(QueryFailedError, match="late: not allowed"):
        loop.begin("late")
    assert len(runner.queries) == 1
    with folder.version("v2").locked():
        """Nobody holds it."""


def test_a_step_that_cannot_begin_is_let_go_of_for_a_swap(runner: StepRunner) -> None:
    folder, said = runner.folder("late"), list[str]()
    folder.point(Current("v1", None, (CUT,)))
    runner.away = [NetworkError("gone")] * 100
    with looping(runner, said) as loop, folder.hold():
        loop.begin("late")
        assert loop.busy
        with folder.version("v1").locked():
            loop.turn()
    assert (runner.queries, said) == ([], [])


# ---- locks -----------------------------------------------------------------------------------------------------------


def test_a_swap_just_before_the_lock_is_seen(runner: StepRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    look_up = StepFolder.current

    def swapped_behind_our_back(folder: StepFolder) -> Current:
        monkeypatch.undo()
        found = look_up(folder)
        folder.point(Current("v2", "v1"))
        return found

    monkeypatch.setattr(StepFolder, "current", swapped_behind_our_back)
    with looping(runner) as loop:
        loop.begin("late")
        assert [query.plan.version.name for query in runner.queries] == ["v2"]
        with runner.folder("late").version("v1").locked(), pytest.raises(BusyError):
            loop.begin("late")


def test_another_process_that_takes_the_step_after_a_swap_does_not_end_the_run(runner: StepRunner) -> None:
    folder, said = runner.folder("late"), list[str]()
    with looping(runner, said) as loop:
        loop.begin("late")
        with folder.hold():
            loop.turn()
            loop.turn()
        with folder.version("v1").locked():
            loop.turn()
            loop.turn()
            assert said == ["another process runs late v1; stop it first; late waits for it"]
            assert (len(runner.queries), loop.busy) == (1, True)
        loop.turn()
        assert (len(runner.queries), said[-1]) == (2, "late goes on as v1")
