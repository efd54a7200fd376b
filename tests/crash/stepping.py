"""Jobs that go on one disk call at a time: what threads do side by side, in an order that is drawn.

    with stepped(random) as turns:
        disk = SteppedDisk(turns, Random(1))
        job = turns.begin("checkpoint", checkpoint.run)
        job.advance(3)                       # three stops further; whatever comes now comes between two of its calls

A job has a thread of its own, and stops at every disk call. Only one thread ever runs: the loop's, or that of the job
which it lets go on. What a seed decides is therefore decided, though there are threads. Other jobs may also go on in
the midst of what the loop does, at its own disk calls, as they would on a machine. Between two stops a job is alone:
two threads inside of one call, or in lines of Python without one, are not tried.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from random import Random
from threading import Lock, Thread
from types import TracebackType
from unittest.mock import patch
from zlib import crc32

from duramen.sim.world.disk import CrashDisk, Killed
from duramen.storage.files import sync_history
from duramen.storage.log import sync

STRIDES = (1, 1, 1, 2, 3, 5, 8, 50)
"""By how many stops a job goes on in a turn."""
LOOP = "loop"


class DeadlockError(AssertionError):
    """Jobs wait for each other, or for the loop, which waits for them."""


class Job:
    """Work on a thread of its own. Everything but `stop` and `wait_for` is called by the loop.

    over: it has ended, with `error` or without. mixed: whether somebody else has made a disk call between two of its
    own. tainted: the disk was at fault while this was under way, whatever it is now.
    """

    def __init__(self, turns: Turns, name: str, work: Callable[[], object]) -> None:
        self.name = name
        self.over = False
        self.mixed = False
        self.tainted = False
        self.error: BaseException | None = None
        self.waits: TurnLock | None = None
        self._turns = turns
        self._work = work
        self._last_call = 0
        self._go, self._back = Lock(), Lock()
        self._go.acquire()
        self._back.acquire()
        self._thread = Thread(target=self._run, name=name, daemon=True)

    def _run(self) -> None:
        self._go.acquire()
        try:
            if not self._turns.given_up:
                self._work()
        except BaseException as error:  # noqa: BLE001 - told to whoever asked for the job
            self.error = error
        self.over = True
        self._back.release()

    def advance(self, stops: int) -> bool:
        """Let it, or whoever has a lock that it waits for, go on to the next stop, so often; whether it is over.

        Nothing happens while it waits for the loop. DeadlockError.
        """
        for _ in range(stops):
            first = self._first()
            if self.over or first is None:
                break
            self._turns.give(first)
        return self.over

    def finish(self) -> None:
        """Let it go on to its end. DeadlockError, also where it waits for the loop."""
        while not self.over:
            self.go_first()

    def go_first(self) -> None:
        """One stop, for a loop that waits for it. DeadlockError."""
        first = self._first()
        if first is None:
            raise DeadlockError(f"the loop waits for {self.name}, and that for the loop")
        self._turns.give(first)

    def _first(self) -> Job | None:
        """Who has to go on before this can: itself, where it waits for nobody; None is the loop. DeadlockError."""
        job, met = self, [self]
        while job.waits is not None and job.waits.held:
            if job.waits.holder is None:
                return None
            job = job.waits.holder
            if job in met:
                raise DeadlockError(" waits for ".join(each.name for each in (*met, job)))
            met.append(job)
        return job

    def resume(self) -> None:
        """For `Turns.give`: its thread runs until it stops or ends."""
        if self._thread.ident is None:
            self._thread.start()
        self._go.release()
        self._back.acquire()
        if self.over:
            self._thread.join()

    def stop(self) -> None:
        """On its thread: let others go on. Killed, where the jobs are given up."""
        self._back.release()
        self._go.acquire()
        if self._turns.given_up:
            raise Killed(f"{self.name} is given up")

    def wait_for(self, lock: TurnLock) -> None:
        """On its thread: stop while somebody has a lock."""
        self.waits = lock
        try:
            self.stop()
        finally:
            self.waits = None

    @property
    def has_begun(self) -> bool:
        """Whether it has made a disk call."""
        return self._last_call > 0

    def calls(self, number: int) -> None:
        """It makes the disk call of this number."""
        self.mixed = self.mixed or self._last_call not in (0, number - 1)
        self._last_call = number


class TurnLock:
    """A lock of the engine: who waits for it lets others go on."""

    def __init__(self, turns: Turns) -> None:
        self.held = False
        self.holder: Job | None = None
        self._turns = turns

    def __enter__(self) -> None:
        while self.held:
            self._turns.wait_for(self)
        self.held, self.holder = True, self._turns.whose

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.held, self.holder = False, None


class Turns:
    """Whose turn it is. Everything random is drawn from `random`.

    whose: the job that runs; None is the loop. under_way: the jobs that have begun and not ended. bustle: how likely it
    is, at a disk call of the loop, that a job goes on before it. stops_behind: whether a job stops behind each disk
    call, too, so that what it makes of the call comes after what others do. calls: how many disk calls were made;
    history: a checksum of all of them, and of who made each. given_up: see `end`.
    """

    def __init__(self, random: Random) -> None:
        self.random = random
        self.bustle = random.choice((0.0, 0.05, 0.4))
        self.stops_behind = random.random() < 0.5
        self.whose: Job | None = None
        self.under_way: list[Job] = []
        self.calls = 0
        self.history = 0
        self.given_up = False

    def begin(self, name: str, work: Callable[[], object]) -> Job:
        """Work for a thread of its own; it has not done anything yet."""
        job = Job(self, name, work)
        self.under_way.append(job)
        return job

    def give(self, job: Job) -> None:
        """Let a job run to its next stop."""
        self.whose = job
        try:
            job.resume()
        finally:
            self.whose = None
        if job.over:
            self.under_way.remove(job)

    def go_on(self) -> None:
        """Some job that is under way goes on, whoever has asked for it."""
        if self.under_way:
            self.random.choice(self.under_way).advance(self.random.choice(STRIDES))

    def wait_for(self, lock: TurnLock) -> None:
        """Somebody else has the lock. DeadlockError."""
        if self.whose is not None:
            self.whose.wait_for(lock)
        elif lock.holder is None:
            raise DeadlockError("the loop waits for itself")
        else:
            lock.holder.go_first()

    def note(self, operation: str, path: str, length: int) -> None:
        """A disk call is about to be made."""
        self.calls += 1
        name = LOOP
        if self.whose is not None:
            self.whose.calls(self.calls)
            name = self.whose.name
        self.history = crc32(f"{name} {operation} {path} {length}".encode(), self.history)

    def finish(self) -> None:
        """All jobs that are under way go on to their end."""
        while self.under_way:
            self.under_way[0].finish()

    def end(self) -> None:
        """No thread is left: what is under way ends at its next stop, as if the process had been killed."""
        self.given_up = True
        while self.under_way:
            self.give(self.under_way[0])


class SteppedDisk(CrashDisk):
    """A disk at whose calls jobs stop. lacked: how often something did not fit."""

    def __init__(self, turns: Turns, random: Random, *, torn: bool) -> None:
        super().__init__(random, torn=torn)
        self._turns = turns
        self.lacked = 0

    def grow(self, path: str, length: int) -> int:
        """See CrashDisk."""
        room = super().grow(path, length)
        self.lacked += room < length
        return room

    def enter(self, operation: str, path: str, length: int = 0) -> None:
        """Others go on before the call."""
        turns = self._turns
        if turns.whose is not None:
            turns.whose.stop()
        elif turns.under_way and turns.random.random() < turns.bustle:
            turns.go_on()
        turns.note(operation, path, length)
        super().enter(operation, path, length)

    def leave(self, operation: str, path: str) -> None:
        """And, in some lives, before its caller knows what came of it."""
        super().leave(operation, path)
        turns = self._turns
        if turns.whose is not None and turns.stops_behind and self.powered:
            turns.whose.stop()
            if self._dead is not None:
                raise self._dead(f"{operation} {path}: the node died before anybody knew of it")


@contextmanager
def stepped(random: Random) -> Iterator[Turns]:
    """The engine's locks are such that one thread at a time can have them; no thread is left behind."""
    turns = Turns(random)
    locks = partial(TurnLock, turns)
    with patch.object(sync, "Lock", locks), patch.object(sync_history, "Lock", locks):
        try:
            yield turns
        finally:
            turns.end()
