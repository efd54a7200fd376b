"""A swap and a rollback that die at every disk write and every call of the node in turn: readers see each input once.

No Spark and no node: topics are lists, and versions work inputs in by writing what Spark would into their checkpoints.
"""

from __future__ import annotations

import fcntl
import json
import shutil
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from duramen import pipelines
from duramen.model import topic_id_text
from duramen.pipelines.model import folders
from duramen.pipelines.model.folders import Current
from duramen.pipelines.model.offsets import Offsets
from duramen.pipelines.model.swap_chain import readings
from duramen.pipelines.run.reprocess import NotReadyError, Reprocessing
from duramen.pipelines.tables.parquet_store import ParquetStore
from duramen.swaps import CutOver, SwapConflictError
from duramen.swaps.cut_overs import topics_of

PARTITIONS = 2


class DiedError(Exception):
    """The process dies here."""


class World:
    """A node with topics and cuts, one pipeline, and a fault at a step of your choice."""

    def __init__(self, folder: Path) -> None:
        self.topics: dict[str, list[list[int]]] = {}
        self.chain: tuple[CutOver, ...] = ()
        self.steps_left: int | None = None
        self.moving: dict[str, int] = {}
        """By sink: its batch that is committed, and on its way."""
        self.pipeline = pipelines.Pipeline("tour", folder=folder)
        self.flights = [0] * PARTITIONS

        @self.pipeline.stream(pipelines.Topic("flights"), to="late")
        def late(flights: Any) -> Any:
            return flights

        @self.pipeline.table(pipelines.Topic("flights"), keys=["n"], store="parquet")
        def latest(flights: Any) -> Any:
            return flights

    # ---- faults ----------------------------------------------------------------------------------------------

    def step(self) -> None:
        if self.steps_left is not None:
            self.steps_left -= 1
            if self.steps_left < 0:
                raise DiedError

    def failing(self, real: Callable[..., Any]) -> Callable[..., Any]:
        """Fails before it takes effect, or behind that."""

        def call(*given: Any) -> Any:
            self.step()
            found = real(*given)
            self.step()
            return found

        return call

    # ---- the node --------------------------------------------------------------------------------------------

    def publish(self, topic: str, cuts: Sequence[CutOver]) -> None:
        if self.chain == tuple(cuts):
            return
        if self.chain != tuple(cuts)[: len(self.chain)]:
            raise SwapConflictError("other cuts")
        self.chain = tuple(cuts)

    def ends(self, topic: str) -> Offsets:
        return Offsets({(topic, p): len(values) for p, values in enumerate(self.topics.get(topic, ()))})

    # ---- versions --------------------------------------------------------------------------------------------

    def come(self, count: int) -> None:
        """So many flights more, dealt out to the partitions."""
        for _ in range(count):
            self.flights[sum(self.flights) % PARTITIONS] += 1

    def work(self, version: str, upto: Offsets | None = None) -> None:
        """What a run of the stream does: tell the node, then work in what is there, up to a bound."""
        folder = Reprocessing(self.pipeline, "late").folder
        self.publish("late", folder.current().cuts)
        place = folder.version(version)
        to = "late" if version == "v1" else f"late.{version}"
        step = self.pipeline.step("late")
        place.describe({"fingerprint": step.fingerprint, "generation": 0, "first_generation": 0, "to": to})
        topic = self.topics.setdefault(to, [[] for _ in range(PARTITIONS)])
        done = folders.committed(place.checkpoint(0))
        ends = {}
        for p, there in enumerate(self.flights):
            since = done.end("flights", p)
            ends[p] = max(since, there if upto is None else min(there, upto.end("flights", p)))
            topic[p] += [n * PARTITIONS + p for n in range(since, ends[p])]
        checkpoint(place.checkpoint(0), ends)

    def run(self, names: list[str], tell: Any, say: Any, *, version: str, available_now: bool, upto: Any) -> None:
        """As a Runner, of the version that a reprocessing builds."""
        self.work(version, upto)

    def doing(self, _phase: str) -> None:
        """As a Runner's."""

    def readings(self, step: Any, version: folders.VersionFolder) -> Any:
        return tuple(readings(step.name, "flights", (), version.about() or {}))


def checkpoint(place: Path, ends: dict[int, int]) -> None:
    for kind in ("offsets", "commits"):
        (place / kind).mkdir(parents=True, exist_ok=True)
        told = json.dumps({"flights": {str(p): at for p, at in ends.items()}})
        (place / kind / str(len(list((place / kind).iterdir())))).write_text(f"v1\n{{}}\n{told}")


class Reader:
    """Follows the stream by what the node tells, and asks for cuts behind every answer."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.at = [(0, 0)] * PARTITIONS
        self.read: list[list[int]] = [[] for _ in range(PARTITIONS)]

    def follow(self) -> None:
        world = self.world
        for p in range(PARTITIONS):
            while True:
                generation, offset = self.at[p]
                topic = topics_of("late", world.chain)[generation]
                end = len(world.topics[topic][p])
                cut = world.chain[generation] if generation < len(world.chain) else None
                end = end if cut is None else min(end, cut.until.get(p, 0))
                self.read[p] += world.topics[topic][p][offset:end]
                self.at[p] = (generation, max(offset, end))
                if cut is None or end < cut.until.get(p, 0):
                    break
                self.at[p] = (generation + 1, cut.start.get(p, 0))

    def check(self) -> None:
        """Each input once, in order."""
        self.follow()
        for p, read in enumerate(self.read):
            assert read == [n * PARTITIONS + p for n in range(self.world.flights[p])]


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], World]]:
    worlds: list[World] = []

    class Log:
        def __init__(self, cluster: Any) -> None:
            """Of the world made last."""

        def publish(self, topic: str, cuts: Sequence[CutOver]) -> None:
            worlds[-1].failing(worlds[-1].publish)(topic, cuts)

    class Asked:
        def __init__(self, bootstrap: str) -> None:
            """Of the world made last."""

        def ends(self, topic: str) -> Offsets:
            found: Offsets = worlds[-1].failing(worlds[-1].ends)(topic)
            return found

        def topic_id(self, topic: str) -> str:
            return "Q" * 22

        def unread(self, sink: str) -> int | None:
            found: int | None = worlds[-1].failing(worlds[-1].moving.get)(sink)
            return found

    write = folders.write_json
    monkeypatch.setattr("duramen.pipelines.run.reprocess.SwapLog", Log)
    monkeypatch.setattr("duramen.pipelines.run.reprocess.PipelineNode", Asked)
    monkeypatch.setattr("duramen.pipelines.run.unpublished_swap.PipelineNode", Asked)
    monkeypatch.setattr(folders, "write_json", lambda *given: worlds[-1].failing(write)(*given))

    def made() -> World:
        worlds.append(World(tmp_path / str(len(worlds))))
        return worlds[-1]

    return made  # type: ignore[return-value]


def quiet(_: object) -> None:
    """Nobody listens."""


def with_a_fault(world: World, at: int, call: Callable[[], object]) -> bool:
    """Whether the call got that far and died."""
    world.steps_left = at
    try:
        call()
    except DiedError:
        return True
    finally:
        world.steps_left = None
    return False


def ask_again(call: Callable[[], object]) -> None:
    """As who saw it die does; where all was done but the answer, it says so."""
    try:
        call()
    except NotReadyError as error:
        if "already" not in str(error):
            raise


@pytest.mark.parametrize("asked_again", ["at once", "after a run", "not"])
@pytest.mark.parametrize("what", ["swap", "rollback"])
def test_a_stream_is_the_one_version_or_the_other_wherever_it_dies(
    make: Callable[[], World], what: str, asked_again: str
) -> None:
    at = 0
    while True:
        world = make()
        world.come(5)
        world.work("v1")
        reader, work = Reader(world), Reprocessing(world.pipeline, "late")
        reader.follow()
        work.build(world, "v2", quiet, quiet)  # type: ignore[arg-type]
        if what == "rollback":
            work.swap("v2")
            world.come(3)
            world.work("v2")
            world.work("v1")
        old, new = ("v1", "v2") if what == "swap" else ("v2", "v1")

        def once(work: Reprocessing = work) -> object:
            return work.swap("v2") if what == "swap" else work.rollback()

        died = with_a_fault(world, at, once)
        reader.follow()
        current = work.folder.current().version
        assert current in {old, new}
        if asked_again == "after a run":
            world.come(3)
            world.work(current)  # it goes on in the version that is current
            reader.follow()
            other = ({old, new} - {current}).pop()
            world.work(other, work.contained(current))
        if asked_again != "not" and died:
            ask_again(once)
            assert work.folder.current().version == new
            assert world.chain == work.folder.current().cuts, "the node knows"
        if not died and what == "rollback":
            with pytest.raises(NotReadyError, match="already"):
                once()
        world.come(4)
        world.work(work.folder.current().version)
        reader.check()
        if not died:
            break
        at += 1
    assert at >= 8, "the fault came at every step"


@pytest.mark.parametrize("what", ["swap", "rollback"])
def test_a_table_is_the_one_version_or_the_other_wherever_it_dies(make: Callable[[], World], what: str) -> None:
    at = 0
    while True:
        world = make()
        work = Reprocessing(world.pipeline, "latest")
        for version in ("v1", "v2"):
            place = work.folder.version(version)
            place.describe({"fingerprint": work.step.fingerprint, "generation": 0, "first_generation": 0})
            checkpoint(place.checkpoint(0), {0: 2})
            store = ParquetStore(place.table, work.step.shape, pa.schema([("n", pa.int64()), ("by", pa.string())]))  # type: ignore[attr-defined]
            rows = [
                {"n": n, "by": version, "_topic": "flights", "_partition": 0, "_offset": n, "_deleted": False}
                for n in range(2)
            ]
            store.apply(pa.Table.from_pylist(rows, schema=store.schema), "q", 0, Offsets({("flights", 0): 2}))
        work.folder.note_reprocessing({"version": "v2", "phase": "built"})
        if what == "rollback":
            work.swap("v2")

        def once(work: Reprocessing = work) -> object:
            return work.swap("v2") if what == "swap" else work.rollback()

        def seen(world: World = world) -> set[str]:
            rows = pipelines.open_table(world.pipeline, "latest").rows().to_pylist()
            assert sorted(row["n"] for row in rows) == [0, 1]
            return {row["by"] for row in rows}

        died = with_a_fault(world, at, once)
        assert seen() in ({"v1"}, {"v2"})
        if died:
            ask_again(once)
        assert seen() == ({"v2"} if what == "swap" else {"v1"})
        if not died:
            break
        at += 1
    assert at >= 4, "the fault came at every step"


def test_a_chain_of_somebody_else_is_found_before_anything_has_changed(make: Callable[[], World]) -> None:
    world = make()
    world.come(4)
    world.work("v1")
    work = Reprocessing(world.pipeline, "late")
    work.build(world, "v2", quiet, quiet)  # type: ignore[arg-type]
    world.chain = (CutOver("late", {0: 1}, "late.theirs", {0: 1}),)
    with pytest.raises(SwapConflictError):
        work.swap("v2")
    assert work.folder.current() == Current()
    world.chain = ()
    work.swap("v2")
    world.chain = (*world.chain, CutOver("late.v2", {0: 1}, "late.theirs", {0: 1}))
    with pytest.raises(SwapConflictError):
        work.rollback()
    assert work.folder.current().version == "v2"


def test_a_chain_of_somebody_else_that_comes_between_leaves_the_pointer_where_it_was(make: Callable[[], World]) -> None:
    world = make()
    world.come(4)
    world.work("v1")
    theirs = (CutOver("late", {0: 1}, "late.theirs", {0: 1}),)

    def mark(point: str) -> None:
        if point == "switched":
            world.chain = theirs

    work = Reprocessing(world.pipeline, "late", mark)
    work.build(world, "v2", quiet, quiet)  # type: ignore[arg-type]
    with pytest.raises(SwapConflictError):
        work.swap("v2")
    assert (work.folder.current(), world.chain) == (Current(), theirs)


@pytest.mark.parametrize("written", [False, True], ids=["nothing behind it", "something behind it"])
def test_a_swap_that_was_cut_off_before_the_node_knew_is_taken_back_where_another_came_first(
    make: Callable[[], World], written: bool
) -> None:
    """The pointer was ahead for ever: neither a run nor a swap could go on."""
    world = make()
    world.come(4)
    world.work("v1")
    theirs = (CutOver("late", {0: 1}, "late.theirs", {0: 1}),)

    def mark(point: str) -> None:
        if point == "switched":
            raise DiedError

    work = Reprocessing(world.pipeline, "late", mark)
    work.build(world, "v2", quiet, quiet)  # type: ignore[arg-type]
    with pytest.raises(DiedError):
        work.swap("v2")
    ahead = work.folder.current()
    assert ahead.version == "v2"
    world.chain = theirs
    if written:  # then the node knew, and lost it: nobody may say that it never was
        world.topics["late.v2"][0].append(99)
    with pytest.raises(SwapConflictError):
        Reprocessing(world.pipeline, "late").swap("v2")
    assert work.folder.current() == (ahead if written else Current())
    with pytest.raises(SwapConflictError):
        Reprocessing(world.pipeline, "late").swap("v2")
    assert work.folder.current() == (ahead if written else Current())


@pytest.mark.parametrize("moves", ["v1", "v2"])
def test_nobody_cuts_while_the_node_still_moves_what_is_committed(make: Callable[[], World], moves: str) -> None:
    """It went behind the commit, Spark took the batch for done, and it is back: the topic's end is no end yet."""
    world = make()
    world.come(5)
    world.work("v1")
    reader, work = Reader(world), Reprocessing(world.pipeline, "late")
    work.build(world, "v2", quiet, quiet)  # type: ignore[arg-type]
    topic = world.topics["late" if moves == "v1" else "late.v2"][0]
    late = topic.pop()
    world.moving[f"tour.late.{moves}.0"] = 0
    with pytest.raises(NotReadyError, match=f"batch 0 of late {moves} is committed"):
        work.swap("v2")
    assert (work.folder.current().version, world.chain) == ("v1", ())
    topic.append(late)
    world.moving.clear()
    work.swap("v2")
    world.come(4)
    world.work("v2")
    reader.check()


def test_a_stream_is_not_swapped_between_topics_of_one_name(make: Callable[[], World]) -> None:
    """Its source was deleted and made anew. The new version had as many of the new records as the old one had of the
    old ones, and was taken for whole: readers went on behind what it had made of them."""
    world = make()
    world.come(6)
    world.work("v1")
    work = Reprocessing(world.pipeline, "late")

    def read(version: str, topic: int) -> None:
        """The version has read this one of the topics that had the name."""
        path = max((work.folder.version(version).checkpoint(0) / "offsets").iterdir(), key=lambda each: int(each.name))
        head, settings, ends = path.read_text().splitlines()
        told = {"flights": {**json.loads(ends)["flights"], "topicId": topic_id_text(bytes([topic] * 16))}}
        path.write_text(f"{head}\n{settings}\n{json.dumps(told)}")

    read("v1", 1)
    work.build(world, "v2", quiet, quiet)  # type: ignore[arg-type]
    read("v2", 2)
    for behind in (0, 100):
        with pytest.raises(NotReadyError, match=r"topic flights was deleted and made anew.*failOnDataLoss"):
            work.swap("v2", behind)
    assert (work.folder.current(), world.chain) == (Current(), ())
    read("v1", 2)
    work.swap("v2")
    assert work.folder.current().version == "v2"


def test_a_stream_is_swapped_beside_a_run_whose_records_never_rest(make: Callable[[], World]) -> None:
    world = make()
    world.come(9)
    world.work("v1")
    work = Reprocessing(world.pipeline, "late")
    reader = Reader(world)
    rounds: list[str] = []

    class Live:
        """The runner that builds; beside it the run of v1 goes on until it lets go of the step."""

        doing = world.doing

        def readings(self, step: Any, version: folders.VersionFolder) -> Any:
            return world.readings(step, version)

        def run(self, names: list[str], tell: Any, say: Any, *, version: str, available_now: bool, upto: Any) -> None:
            world.come(3)
            world.work(version, upto)
            rounds.append(version)
            if not work.folder.held:
                world.come(2)
                world.work("v1")
                world.come(5)

    live: Any = Live()
    assert work.build(live, "v2", quiet, quiet).behind > 0, "it does not catch up with a run that goes on"
    assert 2 <= len(rounds) <= 4, "and sees that"
    work.swap("v2", catch_up=lambda: work.catch_up(live, "v2", quiet, quiet))
    assert work.folder.current().version == "v2"
    world.work("v2")
    reader.check()


def test_the_version_before_is_gone_back_to_whoever_was_reprocessed_last(make: Callable[[], World]) -> None:
    world = make()
    world.come(4)
    world.work("v1")
    work = Reprocessing(world.pipeline, "late")
    work.build(world, "v2", quiet, quiet)  # type: ignore[arg-type]
    work.swap("v2")
    world.come(4)
    world.work("v2")
    work.build(world, "v1", quiet, quiet)  # type: ignore[arg-type]
    assert work.rollback()[0] == "v1"
    with pytest.raises(NotReadyError, match="`duramen spark swap` goes to v2 again"):
        work.rollback()
    work.swap("v2")
    assert work.folder.current().version == "v2"
    assert work.rollback()[0] == "v1"


def test_a_version_that_waits_at_a_cut_of_its_source_is_named(make: Callable[[], World]) -> None:
    world = make()
    world.come(4)
    world.work("v1")
    work = Reprocessing(world.pipeline, "late")

    class Ahead:
        def readings(self, step: Any, version: folders.VersionFolder) -> Any:
            return readings(step.name, "flights", [CutOver("flights", {}, "flights.v2", {})], version.about() or {})

    with pytest.raises(NotReadyError, match="late v1 has not gone on behind the last swap of flights"):
        work.build(Ahead(), "v2", quiet, quiet)  # type: ignore[arg-type]


def tables(world: World, *versions: str) -> Reprocessing:
    """Versions of the table that contain the same, the first of them current."""
    work = Reprocessing(world.pipeline, "latest")
    for version in versions:
        place = work.folder.version(version)
        place.describe({"fingerprint": work.step.fingerprint, "generation": 0, "first_generation": 0})
        checkpoint(place.checkpoint(0), {0: 2})
    return work


def test_a_swap_goes_by_what_is_current_when_nobody_else_swaps(
    make: Callable[[], World], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two swaps at once: the later one looked at the pointer before the other one moved it."""
    work = tables(make(), "v1", "v2", "v3")
    work.folder.note_reprocessing({"version": "v3", "phase": "built"})
    hold = work.folder.hold

    def late() -> Any:
        work.folder.point(Current("v2", "v1"))
        return hold()

    monkeypatch.setattr(work.folder, "hold", late)
    work.swap("v3")
    assert work.folder.current() == Current("v3", "v2"), "a rollback goes to what was current"


@pytest.mark.parametrize("killed_at", [None, "switched"])
def test_a_rollback_is_not_undone_by_another_one_once_a_version_was_begun(
    make: Callable[[], World], killed_at: str | None
) -> None:
    """What had been done stood where a build notes how far it is. The second rollback went forward again."""
    work = tables(make(), "v1", "v2")
    work.folder.note_reprocessing({"version": "v2", "phase": "built"})
    work.swap("v2")

    def mark(point: str) -> None:
        if point == killed_at:
            raise DiedError

    with nullcontext() if killed_at is None else pytest.raises(DiedError):
        Reprocessing(work.pipeline, "latest", mark).rollback()
    work.folder.note_reprocessing({"version": "v3", "from": "v1", "phase": "building"})
    with pytest.raises(NotReadyError, match="rolled back to v1 already; `duramen spark swap` goes to v2 again"):
        work.rollback()
    assert work.folder.current().version == "v1"
    work.swap("v2")
    work.folder.note_reprocessing({"version": "v3", "from": "v2", "phase": "building"})
    assert work.rollback()[0] == "v1"


def test_a_version_that_was_dropped_is_not_gone_to(make: Callable[[], World]) -> None:
    work = tables(make(), "v1", "v2")
    work.folder.note_reprocessing({"version": "v2", "phase": "built"})
    work.swap("v2")
    shutil.rmtree(work.folder.version("v1").path)
    for call in (work.rollback, lambda: work.swap("v1")):
        with pytest.raises(NotReadyError, match="latest v1 is gone"):
            call()
    assert work.folder.current().version == "v2"
    assert not work.folder.version("v1").path.exists()


def test_a_version_that_stands_at_a_cut_of_its_source_has_what_lies_before_it(make: Callable[[], World]) -> None:
    """A run that was killed before its first batch behind the cut: it has worked in nothing of the new topic, but all
    of the old one. A stream built beside it would have been empty, and taken for whole."""
    world = make()
    world.come(6)
    world.work("v1")
    work = Reprocessing(world.pipeline, "late")
    place = work.folder.version("v1")
    cuts = [CutOver("flights", {0: 3, 1: 3}, "flights.v2", {0: 3, 1: 3})]
    place.describe({**(place.about() or {}), "generation": 1})
    assert work.contained("v1") == Offsets({("flights", 0): 3, ("flights", 1): 3})

    class Behind:
        def readings(self, step: Any, version: folders.VersionFolder) -> Any:
            return readings(step.name, "flights", cuts, version.about() or {})

    with pytest.raises(NotReadyError, match="late v1 has not gone on behind the last swap of flights"):
        work.build(Behind(), "v2", quiet, quiet)  # type: ignore[arg-type]


def test_who_looks_whether_a_step_is_held_does_not_keep_a_swap_from_it(make: Callable[[], World]) -> None:
    folder = tables(make(), "v1").folder
    with folder.hold():
        pass
    with (folder.path / "hold").open("r") as looking:
        fcntl.flock(looking, fcntl.LOCK_SH)
        threading.Timer(0.2, fcntl.flock, (looking, fcntl.LOCK_UN)).start()
        with folder.hold():
            assert folder.held
