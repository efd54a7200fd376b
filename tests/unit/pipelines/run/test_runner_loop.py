"""A run lets go of a step that is swapped, between two batches, and goes on behind it; no Spark needed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, cast

import pytest

from duramen import pipelines
from duramen.errors import DeadlineError
from duramen.pipelines.model.folders import BusyError, Current, StepFolder
from duramen.pipelines.model.offsets import Offsets
from duramen.pipelines.model.progress import Written
from duramen.pipelines.model.swap_chain import Reading
from duramen.pipelines.run.failures import QueryFailedError, patiently
from duramen.pipelines.run.metrics import PipelineMetrics
from duramen.pipelines.run.queries import Running as RealRunning
from duramen.pipelines.run.query_report import QueryReport
from duramen.pipelines.run.runner import RESTARTS_MAX, Runner, Terms, _Loop
from duramen.swaps import CutOver, SwapConflictError


class Query:
    """A streaming query; `busy` while a batch goes on."""

    def __init__(self) -> None:
        self.isActive = True
        self.busy = False
        self.recentProgress: list[Any] = []

        self.message = "Initializing sources"

    @property
    def status(self) -> dict[str, Any]:
        return {"isTriggerActive": self.busy, "isDataAvailable": self.busy, "message": self.message}

    def stop(self) -> None:
        self.isActive = False

    def exception(self) -> None:
        return None


class Running:
    """As `queries.Running`."""

    def __init__(self, plan: Any) -> None:
        self.plan = plan
        self.query = Query()
        self.restarts = 0
        self.begun = 1

    def restart(self) -> None:
        self.query = Query()
        self.begun += 1

    def news(self) -> Iterator[Any]:
        return iter(())

    def troubles(self) -> Iterator[str]:
        return iter(())


class Plan:
    def __init__(self, runner: StepRunner, name: str, upto: Any) -> None:
        self.upto = upto
        self.step = runner.pipeline.step(name)
        folder = runner.folder(name)
        self.version = folder.version(folder.current().version)
        self.readings = (Reading(0, "flights", Offsets(), None),)

    @property
    def checkpoint(self) -> Path:
        return self.version.checkpoint(0)


class StepRunner(Runner):
    """A runner whose queries are ours."""

    def __init__(self, pipeline: pipelines.Pipeline) -> None:
        self.pipeline = pipeline
        self.connector = self  # type: ignore[assignment]
        self.published: list[Sequence[CutOver]] = []
        self.started: list[Running] = []
        self.planned: list[Plan] = []
        self.source_cuts: Sequence[CutOver] = ()
        self.phases: list[str] = []
        self.doing = self.phases.append

    def publish(self, topic: str, cuts: Sequence[CutOver]) -> None:
        self.published.append(cuts)

    def plan(self, name: str, version: str | None = None, upto: Any = None) -> Any:
        self.planned.append(Plan(self, name, upto))
        return self.planned[-1]

    def cuts(self, topic: Any) -> Sequence[CutOver]:
        return self.source_cuts

    def start(self, plan: Any, available_now: bool, trigger: str, accept: bool = False) -> Any:
        plan.version.describe({"fingerprint": plan.step.fingerprint})
        self.started.append(Running(plan))
        return self.started[-1]


@pytest.fixture
def runner(tmp_path: Path) -> StepRunner:
    pipeline = pipelines.Pipeline("tour", folder=tmp_path)

    @pipeline.stream(pipelines.Topic("flights"), to="late")
    def late(flights: Any) -> Any:
        return flights

    return StepRunner(pipeline)


def batches(folder: StepFolder, kind: str, *numbers: int) -> None:
    place = folder.version("v1").checkpoint(0) / kind
    place.mkdir(parents=True, exist_ok=True)
    for number in numbers:
        (place / str(number)).write_text(f'v1\n{{}}\n{{"flights":{{"0":{number + 1}}}}}')


def test_a_step_is_let_go_of_between_two_batches_and_taken_up_again(runner: StepRunner) -> None:
    said: list[str] = []
    folder = runner.folder("late")
    with _Loop(runner, Terms(None, False, "1 second", False, None), lambda _: None, said.append) as loop:
        loop.begin("late")
        (one,) = runner.started
        batches(folder, "offsets", 0, 1)
        batches(folder, "commits", 0)
        with folder.hold():
            one.query.busy = True
            loop.turn()
            assert one.query.isActive, "a batch goes on"
            one.query.busy = False
            loop.turn()
            one, again = runner.started
            assert (one.query.isActive, again.query.isActive) == (False, True), "cut off inside of a batch: first that"
            assert [plan.upto for plan in runner.planned] == [None, Offsets({("flights", 0): 2})], "and none behind it"
            loop._held_since["late"] -= 1000
            for again.query.busy in (False, True):  # it has yet to begin, and then takes long
                loop.turn()
                assert (again.query.isActive, len(runner.started)) == (True, 2), "that one is waited for"
            again.query.busy = False
            with pytest.raises(BusyError), folder.version("v1").locked():
                pass
            batches(folder, "commits", 1)
            loop.turn()
            assert not again.query.isActive
            with folder.version("v1").locked():
                loop.turn()
                assert len(runner.started) == 2, "while it is held, it waits"
            assert loop.busy
        loop.turn()
        assert said == ["late goes on as v1"]
        assert (len(runner.started), runner.planned[-1].upto) == (3, None)
    assert not runner.started[-1].query.isActive


def test_a_run_tells_what_it_waits_for_until_a_batch_has_ended(
    runner: StepRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    with _Loop(runner, Terms(None, False, "1 second", False, None), lambda _: None, lambda _: None) as loop:
        loop.begin("late")
        (one,) = runner.started
        for one.query.message, one.query.busy in (
            ("Initializing sources", False),
            ("Waiting for next trigger", False),
            ("Getting offsets", False),
            ("Processing new data", True),
        ):
            loop.turn()
        assert runner.phases == ["waiting for records", "first batch"]
        monkeypatch.setattr(one, "news", lambda: iter((object(),)))
        loop.turn()
        assert runner.phases[2:] == [""]
        monkeypatch.setattr(one, "news", lambda: iter(()))
        loop.turn()
        assert runner.phases[3:] == []
    (runner.folder("late").version("v1").path).mkdir(parents=True, exist_ok=True)
    runner.phases.clear()
    runner.run(["late"], lambda _: None, lambda _: None, until=lambda: True)
    assert runner.phases == ["planning late", "first batch", ""]


def test_other_logic_ends_the_step_unless_the_file_has_it(runner: StepRunner, tmp_path: Path) -> None:
    said: list[str] = []
    fresh = pipelines.Pipeline("tour", folder=tmp_path)

    @fresh.stream(pipelines.Topic("flights"), to="late")
    def late(flights: Any) -> Any:
        return flights.where("delay > 5")

    folder = runner.folder("late")
    cuts = (CutOver("late", {0: 3}, "late.v2", {0: 2}),)
    for reload, expected in (
        (None, "late is v2 now, which other code made than this run has: run again for it"),
        (lambda: fresh, "late goes on as v2"),
    ):
        folder.point(Current())
        with _Loop(runner, Terms(None, False, "1 second", False, reload), lambda _: None, said.append) as loop:
            loop.begin("late")
            folder.version("v2").describe({"fingerprint": fresh.step("late").fingerprint})
            folder.point(Current("v2", "v1", cuts))
            loop.turn()
            assert said[-1] == expected
            assert loop.busy == (reload is not None)
    assert runner.published == [cuts], "whoever goes on tells the node of the cut"


@pytest.mark.parametrize("end", [2, 3], ids=["nothing behind it", "something behind it"])
def test_a_run_goes_back_where_its_swap_never_came_about(
    runner: StepRunner, monkeypatch: pytest.MonkeyPatch, end: int
) -> None:
    """Killed between the pointer and the node's record, and another pipeline's swap of the topic came first."""
    said: list[str] = []
    folder = runner.folder("late")
    folder.point(Current("v2", "v1", (CutOver("late", {0: 3}, "late.v2", {0: 2}),)))

    class Asked:
        def __init__(self, bootstrap: str) -> None:
            """Of the pipeline's node."""

        def ends(self, topic: str) -> Offsets:
            return Offsets({(topic, 0): end})

    def refused(topic: str, cuts: Sequence[CutOver]) -> None:
        raise SwapConflictError("another pipeline's came first")

    monkeypatch.setattr("duramen.pipelines.run.unpublished_swap.PipelineNode", Asked)
    monkeypatch.setattr(runner, "publish", refused)
    with _Loop(runner, Terms(None, False, "1 second", False, None), lambda _: None, said.append) as loop:
        if end == 3:
            with pytest.raises(SwapConflictError):
                loop.begin("late")
            assert folder.current().version == "v2"
            return
        loop.begin("late")
        assert loop.busy
        assert runner.started[0].plan.version.name == "v1"
        assert folder.current() == Current()
    assert said == ["late is v1 again: the swap to v2 was cut off, and another pipeline's came first"]


@pytest.mark.parametrize("available_now", [False, True])
def test_a_step_that_somebody_swaps_just_then_is_let_go(
    runner: StepRunner, monkeypatch: pytest.MonkeyPatch, available_now: bool
) -> None:
    """What is to be taken back is held by a swap that began meanwhile: it needs the version, whose lock was kept."""
    folder = runner.folder("late")
    folder.point(Current("v2", "v1", (CutOver("late", {0: 3}, "late.v2", {0: 2}),)))

    def refused(topic: str, cuts: Sequence[CutOver]) -> None:
        meanwhile.enter_context(folder.hold())
        raise SwapConflictError("another pipeline's came first")

    monkeypatch.setattr(runner, "publish", refused)
    terms = Terms(None, available_now, "1 second", False, None)
    with ExitStack() as meanwhile, _Loop(runner, terms, lambda _: None, lambda _: None) as loop:
        if available_now:
            with pytest.raises(BusyError):
                loop.begin("late")
        else:
            loop.begin("late")
            assert loop.busy
        with folder.version("v2").locked():
            assert runner.started == []


def test_a_query_that_fails_for_good_ends_the_run_by_name(runner: StepRunner) -> None:
    with _Loop(runner, Terms(None, False, "1 second", False, None), lambda _: None, lambda _: None) as loop:
        loop.begin("late")
        query = runner.started[0].query
        query.isActive = False
        query.exception = lambda: RuntimeError("duramen.errors.CorruptLogError: flights-0 is damaged")  # type: ignore[assignment,method-assign,return-value]
        with pytest.raises(QueryFailedError, match="late: flights-0 is damaged"):
            loop.turn()


def test_a_cause_says_why_a_write_was_given_up(runner: StepRunner) -> None:
    given_up, refused = RuntimeError("[WRITE_FAILED] Writing job failed."), RuntimeError("Caused in the driver")
    refused._cause = RuntimeError("duramen.errors.FencedError: another run writes as sink late")  # type: ignore[attr-defined]
    given_up._cause = refused  # type: ignore[attr-defined]
    with _Loop(runner, Terms(None, False, "1 second", False, None), lambda _: None, lambda _: None) as loop:
        loop.begin("late")
        query = runner.started[0].query
        query.isActive = False
        query.exception = lambda: given_up  # type: ignore[assignment,method-assign,return-value]
        with pytest.raises(QueryFailedError, match="late: another run writes as sink late"):
            loop.turn()


def test_a_node_that_is_away_does_not_keep_a_run_from_ending(runner: StepRunner) -> None:
    asked: list[str] = []

    def away(name: str, version: str | None = None) -> Any:
        asked.append(name)
        raise DeadlineError("Metadata: not done within 5 s")

    told: list[str] = []
    assert patiently("late", lambda: away("late"), told.append, lambda: bool(told)) is None
    assert (asked, len(told)) == (["late"], 1)


@pytest.mark.parametrize("available_now", [False, True])
def test_a_query_that_dies_without_a_reason_is_begun_again(
    runner: StepRunner, available_now: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("duramen.pipelines.run.runner.RESTART_SECONDS", (0.0,))
    said: list[str] = []
    folder = runner.folder("late")
    watch = PipelineMetrics("tour")
    terms = Terms(None, available_now, "1 second", False, None, watch=watch)
    with _Loop(runner, terms, lambda _: None, said.append) as loop:
        loop.begin("late")
        (one,) = runner.started
        batches(folder, "offsets", 0)
        one.query.isActive = False
        loop.turn()
        assert (one.begun, loop.busy) == (2, True), "a thread of the JVM died inside of a batch"
        assert said == ["late: its query ended and told no reason; again in 0.0 s"]
        assert watch.begin("late", "v1").failures == 1
        batches(folder, "commits", 0)
        one.query.isActive = False
        loop.turn()
        assert loop.busy != available_now, "all that was there is done; a run that goes on never is"
        one.restarts = RESTARTS_MAX
        one.query.isActive = False
        if not available_now:
            with pytest.raises(QueryFailedError, match="late: its query ended and told no reason"):
                loop.turn()


def test_what_was_told_of_a_batch_is_forgotten(runner: StepRunner) -> None:
    """A query may run for ever."""
    query, said = Query(), QueryReport()
    plan: Any = Plan(runner, "late", None)
    plan.version.describe({})
    running = RealRunning(plan, lambda: cast(Any, query), said)
    source = {"endOffset": None, "latestOffset": None, "numInputRows": 5}
    for batch in range(3):
        said.written[batch] = Written(batch + 1, 7)
        ended = {"sources": [source], "durationMs": {"addBatch": 1}, "batchId": batch}
        query.recentProgress.append(ended)
    said.written[3] = Written(4, 7)  # of a batch that goes on
    assert [(progress.batch, progress.written) for progress in running.news()] == [(0, 1), (1, 2), (2, 3)]
    assert list(said.written) == [3]
