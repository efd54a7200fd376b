"""Runs the steps of a pipeline, tells of every batch, and starts again what a lost node ended.

A step that somebody swaps is let go of between two batches, and goes on in the version that is current then.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from types import TracebackType
from typing import NamedTuple, Protocol, Self

from duramen.errors import DeadlineError, DuramenError, NetworkError
from duramen.pipelines.model.declaration import Lookup, Pipeline, StreamStep, TableChanges
from duramen.pipelines.model.folders import BusyError, planned, unfinished
from duramen.pipelines.model.function_fingerprint import other_logic
from duramen.pipelines.model.offsets import Offsets
from duramen.pipelines.model.progress import BatchProgress
from duramen.pipelines.run.failures import (
    RESTART_SECONDS,
    Mark,
    QueryFailedError,
    Say,
    may_pass,
    nowhere,
    patiently,
    reason,
    rest,
)
from duramen.pipelines.run.queries import Queries, Running
from duramen.pipelines.run.unpublished_swap import take_back
from duramen.swaps import SwapConflictError

__all__ = ["Mark", "QueryFailedError", "Runner", "Say", "nowhere", "reason"]

POLL_SECONDS = 0.2
CUTS_SECONDS = 1.0
"""How often a node is asked whether a topic was swapped."""
BATCH_SECONDS_MAX = 5.0
"""How long a batch may go on that stands in the way of a swap; then it is broken off and done again later."""
RESTARTS_MAX = 8
FIRST_BATCH, NO_RECORDS = "first batch", "waiting for records"


class Watch(Protocol):
    """What counts a run's batches and failures (run/metrics.py)."""

    def begin(self, step: str, version: str) -> object:
        """The step begins to run in this version."""

    def batch(self, progress: BatchProgress) -> None:
        """A batch has ended."""

    def failed(self, step: str, version: str) -> None:
        """An attempt to start the step's query, or the query, has failed; it may be tried again."""


class Terms(NamedTuple):
    """How a run was asked for."""

    version: str | None
    available_now: bool
    trigger: str
    accept: bool
    reload: Callable[[], Pipeline] | None = None
    until: Callable[[], bool] = lambda: False
    upto: Offsets | None = None
    watch: Watch | None = None


class Runner(Queries):
    """A pipeline on a session, and the loop that runs it."""

    def run(
        self,
        names: Sequence[str],
        tell: Callable[[BatchProgress], None],
        say: Say,
        *,
        version: str | None = None,
        available_now: bool = False,
        trigger: str = "1 second",
        accept: bool = False,
        upto: Offsets | None = None,
        until: Callable[[], bool] = lambda: False,
        reload: Callable[[], Pipeline] | None = None,
        watch: Watch | None = None,
    ) -> None:
        """Run the steps until everything available is done, or until told.

        upto: nothing of the topics from there on is read.
        reload: gives the pipeline as its file is now. By that a step that is swapped meanwhile goes on in its new
        version; without, it ends.
        """
        terms = Terms(version, available_now, trigger, accept, reload, until, upto, watch)
        with _Loop(self, terms, tell, say) as loop:
            for name in names:
                if available_now:
                    step = self.pipeline.step(name)
                    read: tuple[Lookup | TableChanges, ...] = (*step.lookups, *step.changes)
                    loop.finish([each.table for each in read if each.pipeline is self.pipeline])
                self.doing(f"planning {name}")
                loop.begin(name)
            self.doing(FIRST_BATCH)
            while loop.busy and not until():
                loop.turn()
                time.sleep(POLL_SECONDS)


class _Loop:
    """The steps of one run: those whose queries run, and those that somebody swaps just now."""

    def __init__(self, runner: Runner, terms: Terms, tell: Callable[[BatchProgress], None], say: Say) -> None:
        self._runner = runner
        self._terms = terms
        self._tell = tell
        self._say = say
        self._running: dict[str, Running] = {}
        self._locks: dict[str, ExitStack] = {}
        self._held_since: dict[str, float] = {}
        self._waiting: list[str] = []
        self._finishing: set[str] = set()
        """Steps that do one batch again and are then let go of."""
        self._told_busy: set[str] = set()
        self._next_cuts = 0.0
        self._told_batch = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for name in list(self._running):
            self._end(name, hear=kind is None)
        self._runner.doing("")

    @property
    def busy(self) -> bool:
        return bool(self._running or self._waiting)

    def begin(self, name: str) -> None:
        """Start the step's query. BusyError when another process runs it, ConfigError when other logic made it."""
        self._start(name, self._take(name))

    def finish(self, names: Sequence[str]) -> None:
        """Wait until those of these steps are done that run: what follows is to see all of their tables."""
        while any(name in self._running for name in names) and not self._terms.until():
            self.turn()
            time.sleep(POLL_SECONDS)

    def _take(self, name: str) -> str:
        """Lock the version that the step works on, and name it: a swap may have come before the lock. BusyError."""
        folder = self._runner.folder(name)
        while True:
            version = self._terms.version or folder.current().version
            lock = ExitStack()
            lock.enter_context(folder.version(version).locked())
            if self._terms.version is not None or folder.current().version == version:
                self._locks[name] = lock
                return version
            lock.close()

    def _start(self, name: str, version: str, batch: Offsets | None = None) -> None:
        """Start the query of a version that is locked. Told to stop meanwhile, or failing, it lets go of the lock.

        batch: the end of one that was broken off; it is done again, and none behind it, also when somebody swaps.
        """
        terms, runner = self._terms, self._runner
        if batch is not None:
            self._finishing.add(name)

        def stopped() -> bool:
            return terms.until() or (batch is None and self._asked_for(name))

        def begun() -> Running:
            try:
                self._publish(name)
                plan = runner.plan(name, version, batch or terms.upto)
                return runner.start(plan, terms.available_now, terms.trigger, terms.accept)
            except Exception:
                if terms.watch is not None:
                    terms.watch.failed(name, version)
                raise

        if terms.watch is not None:
            terms.watch.begin(name, version)
        try:
            running = patiently(name, begun, self._say, stopped)
        except SwapConflictError as error:
            try:
                back = self._taken_back(name, version)
            except BusyError:
                if self._terms.available_now:
                    raise
                self._waiting.append(name)  # a swap that began just now sees to it
                return
            finally:
                self._locks.pop(name).close()
            if back is None:
                raise
            self._say(f"{name} is {back} again: the swap to {version} was cut off, and {error}")
            self.begin(name)
            return
        except BaseException:
            self._locks.pop(name).close()
            raise
        if running is not None:
            self._running[name] = running
            return
        self._locks.pop(name).close()
        if self._asked_for(name):
            self._waiting.append(name)

    def _publish(self, name: str) -> None:
        """Let the node tell the cuts of a stream before it writes: whoever swapped may have died before that, and what
        is written behind a cut that readers do not know is read twice."""
        step, cuts = self._runner.pipeline.step(name), self._runner.folder(name).current().cuts
        if isinstance(step, StreamStep) and cuts:
            self._runner.connector.publish(step.to, cuts)

    def _taken_back(self, name: str, version: str) -> str | None:
        """The version before, where the swap to this one never came about; its lock is ours."""
        folder = self._runner.folder(name)
        if self._terms.version is not None:
            return None  # whoever swaps now holds the step, and sees to it
        with folder.hold():
            return take_back(folder, self._runner.pipeline.bootstrap) if folder.current().version == version else None

    def _asked_for(self, name: str) -> bool:
        """Whether somebody swaps the step, and this run is one that lets go of it."""
        return self._terms.version is None and not self._terms.available_now and self._runner.folder(name).held

    def turn(self) -> None:
        """Look at every query once."""
        now = time.monotonic()
        ask = now >= self._next_cuts
        if ask:
            self._next_cuts = now + CUTS_SECONDS
        for name, one in list(self._running.items()):
            active = one.query.isActive
            self._hear(one)
            if self._gives_way(name, one):
                continue
            if (ask or not active) and self._follows(name, one):
                continue
            if not active and not self._again(one):
                self._end(name)
        if not self._told_batch:
            self._tell_phase()
        for name in list(self._waiting):
            if not self._runner.folder(name).held:
                self._waiting.remove(name)
                self._resume(name)

    def _tell_phase(self) -> None:
        """What the run waits for until a batch has ended; between two triggers without records that stays the same."""
        states = [one.query.status for one in self._running.values()]
        if any(state.get("isDataAvailable") for state in states):
            self._runner.doing(FIRST_BATCH)
        elif states and all(str(state.get("message")).startswith("Waiting") for state in states):
            self._runner.doing(NO_RECORDS)

    def _hear(self, one: Running) -> None:
        for progress in one.news():
            self._told_batch = True
            self._runner.doing("")
            if self._terms.watch is not None:
                self._terms.watch.batch(progress)
            self._tell(progress)
        for trouble in one.troubles():
            self._say(trouble)

    # ---- swaps -----------------------------------------------------------------------------------------------

    def _gives_way(self, name: str, one: Running) -> bool:
        """Whether the step is swapped by somebody; its query then ends between two batches, and its lock is free."""
        folder = self._runner.folder(name)
        if self._terms.version is not None or self._terms.available_now:
            return False
        swapped = folder.current().version != one.plan.version.name
        finishing = name in self._finishing
        if not swapped and not finishing and not self._asked_for(name):
            self._held_since.pop(name, None)
            return False
        if finishing and unfinished(one.plan.checkpoint):
            return one.query.isActive  # one that failed is begun again as ever
        since = self._held_since.setdefault(name, time.monotonic())
        if one.query.isActive and one.query.status["isTriggerActive"] and time.monotonic() - since < BATCH_SECONDS_MAX:
            return True
        one.query.stop()
        self._hear(one)
        if isinstance(one.plan.step, StreamStep) and not swapped and unfinished(one.plan.checkpoint):
            # Its rows may be in the topic or not, so nobody can tell where to cut: first the batch, then the swap.
            del self._running[name]
            self._start(name, one.plan.version.name, planned(one.plan.checkpoint))
            return True
        self._end(name)
        self._held_since.pop(name, None)
        self._finishing.discard(name)
        self._waiting.append(name)
        return True

    def _resume(self, name: str) -> None:
        """Go on with the step after a swap, or after one that came to nothing."""
        runner = self._runner
        try:
            version = self._take(name)
        except BusyError as error:
            # Whoever it is, a swap that began just now or another run, the other steps go on.
            if name not in self._told_busy:
                self._say(f"{error}; {name} waits for it")
            self._told_busy.add(name)
            self._waiting.append(name)
            return
        self._told_busy.discard(name)
        about = runner.folder(name).version(version).about() or {}
        if other_logic(runner.pipeline.step(name), about) is not None and self._terms.reload is not None:
            try:
                fresh = self._terms.reload().step(name)
            except DuramenError as error:
                self._say(f"{name}: the pipeline's file cannot be read again: {error}")
            else:
                if other_logic(fresh, about) is None:
                    runner.pipeline.steps[name] = fresh
        if other_logic(runner.pipeline.step(name), about) is not None and not self._terms.accept:
            self._locks.pop(name).close()
            self._say(f"{name} is {version} now, which other code made than this run has: run again for it")
            return
        self._say(f"{name} goes on as {version}")
        self._start(name, version)

    def _follows(self, name: str, one: Running) -> bool:
        """Whether the step's topic has a cut that its query did not know, or was read to its cut: it is begun again."""
        try:
            now = self._runner.readings(one.plan.step, one.plan.version)
        except (NetworkError, DeadlineError):
            return False  # a node that is away is the query's to tell of
        if all(reading.until is None for reading in now):
            return False
        plan = one.plan._replace(readings=now)
        if any(reading.until is not None for reading in one.plan.readings) and not plan.is_read():
            return False
        one.query.stop()
        self._hear(one)
        # Only now, for the query may have begun a batch meanwhile. If it lies behind the cut, starting refuses.
        if self._runner.move_on(plan):
            self._say(f"{name}: {now[0].topic} is read to its cut")
        del self._running[name]
        self._finishing.discard(name)
        self._start(name, one.plan.version.name)
        return True

    # ---- ends ------------------------------------------------------------------------------------------------

    def _again(self, one: Running) -> bool:
        """Start a query again that failed for what may pass; False when it ended well. QueryFailedError otherwise."""
        failure = one.query.exception()
        if failure is None and self._is_done(one):
            return False
        # A thread of Spark that died by an error of the JVM leaves a query that ended and tells no reason.
        why = "its query ended and told no reason" if failure is None else reason(failure)
        if self._terms.watch is not None:
            self._terms.watch.failed(one.plan.step.name, one.plan.version.name)
        if one.restarts >= RESTARTS_MAX or not (failure is None or may_pass(failure)):
            raise QueryFailedError(f"{one.plan.step.name}: {why}") from failure
        wait = RESTART_SECONDS[min(one.restarts, len(RESTART_SECONDS) - 1)]
        self._say(f"{one.plan.step.name}: {why}; again in {wait} s")
        rest(wait, self._terms.until)
        restarts = one.restarts + 1
        one.restart()
        one.restarts = restarts
        return True

    def _is_done(self, one: Running) -> bool:
        """Whether a query that ended without an error has done what it was begun for."""
        if self._terms.until():
            return True
        return self._terms.available_now and not unfinished(one.plan.checkpoint)

    def _end(self, name: str, *, hear: bool = True) -> None:
        """Stop a query that still runs; it ends its batch or gives it up, which a later run does again.

        hear: also what it has reported since it was last looked at.
        """
        one = self._running.pop(name)
        with self._locks.pop(name):
            one.query.stop()
            if hear:
                self._hear(one)
