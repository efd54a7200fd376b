"""A pipeline is killed at every arrow: source, stage, commit, materialise, table commit, checkpoint, next batch.

A real node, a real Spark, two queries: a topic into a topic by the staged commit, and that one into a table. Somebody
is held at a named point on an arrow; while it stands there, the victim gets SIGKILL; then whoever is left goes on. A
kill counts if the victim was alive before and is gone afterwards, and whoever was held still stood there. After each
one topic and table have the input's records, once each, as far as the checkpoints say; at the end both have all of
them. `spark_torture` runs it and counts (`make torture-spark`).
"""

from __future__ import annotations

import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, Protocol

from arrow_judge import Judge
from arrow_pipeline import BATCH_APPLIED, BATCH_COMPUTED, BATCH_PLANNED, COPIED, NUMBERS, TABLE_TASK
from driver_process import environment
from fault_points import FaultPoints
from held_node import COMMITTED, PARTLY_MOVED, HeldNode
from sink_lab import BEFORE_PLAN
from spark_processes import alive, executor_of, executors, kill_9, task_workers
from tests.torture.sink_kills import Keeper

from duramen.spark.sink.sink_points import AFTER_COMMIT, AFTER_STAGE, BEFORE_COMMIT, BEFORE_STAGE, TASK_DONE

ROWS = 40
"""The most in a batch."""
PATIENCE_S = 400.0
FAILED_MAX = 10
"""Drivers that end by themselves: a query is started again by its own driver, so there is hardly one."""
RECORDS, RECORDS_PER_ROUND = 30_000, 1000
"""Of the input: so many that it does not run out before the last round."""
LOCAL, CLUSTER = "local[2,4]", "local-cluster[2,1,1024]"

DRIVER, WORKER, JVM, NODE, FAILURE = "driver", "Python worker", "executor JVM", "node", "failure"
VICTIMS = (DRIVER, WORKER, JVM, NODE)
LOCAL_VICTIMS = (DRIVER, WORKER, NODE)

ARROWS: dict[str, dict[str, str]] = {
    "source -> stage": {BEFORE_STAGE: WORKER},
    "stage -> commit": {AFTER_STAGE: WORKER, TASK_DONE: WORKER, BEFORE_COMMIT: DRIVER},
    "commit -> materialise": {COMMITTED: NODE, PARTLY_MOVED: NODE},
    "materialise -> checkpoint": {AFTER_COMMIT: DRIVER},
    "materialise -> table commit": {BATCH_PLANNED: DRIVER, TABLE_TASK: WORKER, BATCH_COMPUTED: DRIVER},
    "table commit -> checkpoint": {BATCH_APPLIED: DRIVER},
    "checkpoint -> next batch": {BEFORE_PLAN + NUMBERS: DRIVER, BEFORE_PLAN + COPIED: DRIVER},
}
"""Of each arrow its points, and whose process stands there."""


class Round(NamedTuple):
    """failure as the victim: whoever gets there fails, and nobody dies."""

    arrow: str
    point: str
    victim: str


def rounds_of(count: int, victims: tuple[str, ...]) -> list[Round]:
    """So many of each victim at each arrow, its points in turn."""
    return [
        Round(arrow, list(points)[number % len(points)], victim)
        for arrow, points in ARROWS.items()
        for victim in victims
        for number in range(count)
    ]


def failures(count: int) -> list[Round]:
    """So many at each point outside of the node."""
    return [
        Round(arrow, point, FAILURE)
        for arrow, points in ARROWS.items()
        for point in points
        for _ in range(count)
        if points[point] != NODE
    ]


class Program(NamedTuple):
    """What a driver runs: a module of this folder, or of one on the path, and further arguments; rows: the most in a
    batch."""

    command: tuple[str, ...] = ("arrow_pipeline",)
    rows: int = ROWS


class Judging(Protocol):
    """Whoever says whether what a tortured pipeline made is right."""

    def fill(self, count: int) -> None:
        """All the input there will be, about `count` records."""

    def batches(self) -> int:
        """Finished ones of all queries."""

    def is_on(self, arrow: str, point: str) -> bool:
        """Whether what is on disk agrees that a process which stands at `point` stands on the arrow."""

    def look(self, after: str) -> None:
        """AssertionError when something is wrong already."""

    def end(self) -> str:
        """AssertionError unless everything is there, once; says what."""


class Drivers:
    """The driver's processes, one life after the other."""

    def __init__(self, folder: Path, bootstrap: str, master: str, program: Program) -> None:
        self.folder = folder
        self.bootstrap = bootstrap
        self.master = master
        self.program = program
        self.process: subprocess.Popen[bytes] | None = None
        self.java = 0
        self.lives = 0
        self.failed = 0
        """Those that ended by themselves."""
        self.log = folder / "driver.log"

    def ensure(self) -> None:
        """There is one."""
        if self.process is not None and self.process.poll() is None:
            return
        if self.process is not None:
            self.failed += 1
            print(f"a driver ended by itself, exit code {self.process.returncode}:\n{self.told()[-500:]}", flush=True)
            assert self.failed < FAILED_MAX, f"drivers fail again and again\n{self.told()}"
        self.end()
        (self.folder / "driver").unlink(missing_ok=True)
        self.launch(self.program.rows)
        assert self.process is not None
        while not (self.folder / "driver").exists() and self.process.poll() is None:
            time.sleep(0.02)
        if (self.folder / "driver").exists():
            self.java = int((self.folder / "driver").read_text())

    def launch(self, rows: int) -> None:
        self.lives += 1
        module, *words = self.program.command
        given = [str(self.folder), self.bootstrap, self.master, str(rows), *words]
        command = [sys.executable, "-m", module, *given]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=self.folder, env=environment()
            )

    def told(self) -> str:
        return self.log.read_text(errors="replace")[-3000:]

    def end(self) -> None:
        """Both halves of a driver, Python's and Java's, are gone afterwards."""
        if self.process is not None:
            if self.java:
                kill_9([self.java])
            self.process.kill()
            self.process.wait()
            self.process, self.java = None, 0

    def stop(self) -> None:
        """It stops by itself."""
        if self.process is not None:
            (self.folder / "stop").touch()
            self.process.wait(PATIENCE_S)
            (self.folder / "stop").unlink()
            self.process, self.java = None, 0

    def drain(self) -> int:
        """One more, that does all there is to do; its exit code."""
        self.launch(0)
        assert self.process is not None
        code = self.process.wait(5 * PATIENCE_S)
        self.process = None
        return code


class Torture:
    """A folder, a node, drivers, and what was done to them."""

    def __init__(
        self,
        folder: Path,
        seed: int,
        rounds: list[Round],
        master: str,
        program: Program = Program(),  # noqa: B008 (it cannot change)
        judge: Callable[[Path, str], Judging] = Judge,
        records: int = 0,
    ) -> None:
        """records: about so many are the input; 0: as many as `arrow_pipeline` takes."""
        self.rounds = rounds
        self.random = random.Random(seed)
        (folder / "points").mkdir()
        self.points = FaultPoints(folder / "points")
        self.keeper = Keeper(HeldNode(folder, {"log.retention.ms": "-1"}))
        self.drivers = Drivers(folder, self.keeper.node.bootstrap, master, program)
        self.judge = judge(folder, self.keeper.node.bootstrap)
        self.done: Counter[tuple[str, str]] = Counter()
        """Kills by arrow and victim."""
        self.failed: Counter[str] = Counter()
        """Injected failures by point."""
        self.judge.fill(records or RECORDS + RECORDS_PER_ROUND * len(rounds))
        self._began = time.monotonic()

    def close(self) -> None:
        self.drivers.end()
        self.keeper.close()

    def run(self) -> str:
        """The rounds in any order, then the rest of the input; what the last judgement says.

        AssertionError when somebody does not get somewhere, or a record is lost or doubled.
        """
        waiting = self.random.sample(self.rounds, len(self.rounds))
        while waiting:
            self.drivers.ensure()
            if self.random.random() < 0.3:  # not only the first batch of a driver's life
                before = self.judge.batches()
                self._until(lambda before=before: self.judge.batches() > before, "the next batch")
            one = waiting.pop()
            if not self._once(one):
                waiting.insert(0, one)
                continue
            self.judge.look(str(one))

        self.drivers.ensure()
        self.drivers.stop()
        assert self.drivers.drain() == 0, self._told("the last driver failed")
        lives = f"{self.drivers.lives} lives of a driver, {self.drivers.failed} of which ended by themselves"
        return f"{self.judge.end()}; {lives}"

    def _once(self, one: Round) -> bool:
        arrow, point, victim = one
        if victim == FAILURE:
            self.points.set(point, "raise")
            self._until(lambda: self.points.fired(point), f"a failure at {point}")
            self.failed[point] += 1
        else:
            self.points.set(point, "hold")
            self._until(lambda: self.points.held(point), f"somebody at {point}")
            held = self.points.held(point)
            assert held is not None
            there = alive(held.pid) and self.judge.is_on(arrow, point)
            killed = self._kill(victim, held.pid) if there else []
            self.points.release(point)
            self._until(lambda: not alive(held.pid) or self.points.held(point) != held, f"an end of {point}")
            self.points.clear(point)
            if not killed:
                return False
            self.done[(arrow, victim)] += 1
        self.points.clear(point)
        passed, count = time.monotonic() - self._began, self.done.total() + self.failed.total()
        print(f"{passed:5.0f} s {count:4} {victim} at {point}, {arrow}; {self.judge.batches()} batches", flush=True)
        return True

    def _kill(self, victim: str, held: int) -> list[int]:
        """Those that died; whoever stands at the point stands there while they do."""
        java = self.drivers.java
        if victim == NODE:
            process = self.keeper.node.process
            return [process.pid] if process is not None and self.keeper.kill() else []
        if victim == DRIVER:
            killed = kill_9([java])
            self.drivers.end()
            return killed
        workers = task_workers(java)
        if victim == WORKER:
            return kill_9([held] if held in workers else workers)
        mine = executor_of(held)
        there = executors(java)
        return kill_9([mine] if mine in there else there[:1])

    def _until(self, there: Callable[[], object], what: str) -> None:
        give_up = time.monotonic() + PATIENCE_S
        while not there():
            self.drivers.ensure()
            assert time.monotonic() < give_up, self._told(f"waited for {what}")
            time.sleep(0.01)

    def _told(self, wrong: str) -> str:
        return f"{wrong}\n{self.drivers.told()}"
