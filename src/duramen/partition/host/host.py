"""Owns the host: it runs one state machine behind one partition, so that answers leave only when they are durable.

A command is decided, the records of the decision are appended as one batch and applied at once; the answers wait until
the high watermark has reached the log end that the decision saw (ENGINE.md §4). A refused append applies nothing. There
is no undo of what was applied: when the log fails under it, the host fails for good and a new one replays the log.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from duramen.errors import ClosedError, DuramenError, ErrorCode, KafkaError, check
from duramen.machines.contract import NO_TICKET, LogRecord, Machine, Outcome, ProducerEpoch, TimerFired
from duramen.partition.host.load_turns import LoadTurns
from duramen.partition.host.record_writer import HostedLog, RecordWriter
from duramen.partition.host.replay import Replay
from duramen.ports import Clock, Timer
from duramen.wire.batch import Marker, marker_record

DEFAULT_BATCH_BYTES: Final = 1 << 20
SET_MS: Final = 1000
"""A wall clock that goes by so much more, or less, than the other one between two looks was set."""

OnReply = Callable[[Any], None]
AppendMarker = Callable[[int, Callable[[KafkaError | None], None]], None]
"""Appends a marker to the host's log: (now, done), as `append_marker` of `replica/transactional_writes.py`."""


@dataclass(slots=True)
class _Uncommitted:
    """What waits for the high watermark to reach `end`."""

    end: int
    due: float
    records: list[LogRecord]
    replies: list[tuple[int, Any]]
    effects: list[Any]


class TimerTable:
    """The machine's timers by key, on the monotonic clock; moving a timer further away costs no new timer."""

    def __init__(self, clock: Clock, fire: Callable[[Hashable], None]) -> None:
        self._clock = clock
        self._fire = fire
        self._due: dict[Hashable, float] = {}
        self._armed: dict[Hashable, tuple[float, Timer]] = {}

    def set(self, key: Hashable, seconds: float | None) -> None:
        """(Re)start the timer to fire after so many seconds; None cancels it."""
        armed = self._armed.get(key)
        if seconds is None:
            self._due.pop(key, None)
            if armed is not None:
                del self._armed[key]
                armed[1].cancel()
            return
        due = self._clock.monotonic() + max(seconds, 0.0)
        self._due[key] = due
        if armed is None or due < armed[0]:
            if armed is not None:
                armed[1].cancel()
            self._arm(key, due)

    def _arm(self, key: Hashable, due: float) -> None:
        delay = max(due - self._clock.monotonic(), 0.0)
        self._armed[key] = (due, self._clock.call_later(delay, partial(self._ring, key)))

    def _ring(self, key: Hashable) -> None:
        armed_for = self._armed.pop(key)[0]
        due = self._due[key]
        if due > armed_for:
            self._arm(key, due)
            return
        del self._due[key]
        self._fire(key)

    def clear(self) -> None:
        """Cancel everything."""
        for _, timer in self._armed.values():
            timer.cancel()
        self._armed.clear()
        self._due.clear()


def _no_effect(effect: Any) -> None:
    raise TypeError(f"nobody carries out {effect!r}")


class _ClockWatch:
    """Finds out that the wall clock was set, by the one that nobody sets. on_set: gets (now, by how many ms)."""

    def __init__(self, clock: Clock, on_set: Callable[[int, int], None]) -> None:
        self._clock = clock
        self._on_set = on_set
        self._ahead_ms: int | None = None
        """How far the wall clock was ahead of the other one, at the last look."""

    def look(self, now_ms: int) -> None:
        ahead_ms = now_ms - int(1000 * self._clock.monotonic())
        by_ms = 0 if self._ahead_ms is None else ahead_ms - self._ahead_ms
        self._ahead_ms = ahead_ms
        if abs(by_ms) >= SET_MS:
            self._on_set(now_ms, by_ms)


class Host:
    """Runs `machine` behind `partition`; everything happens on the loop thread.

    max_batch_bytes: larger Outcomes are split between transaction marks, or refused when the machine has none.
    commit_timeout_ms: an answer that waits longer for its commit becomes REQUEST_TIMED_OUT, whose message says that
    the outcome is unknown (the change may still take effect).
    on_clock_set: is told of the machine's clock, before the next decision, that it was set: (now, by how many ms).
    """

    def __init__(
        self,
        partition: HostedLog,
        machine: Machine,
        clock: Clock,
        *,
        max_batch_bytes: int = DEFAULT_BATCH_BYTES,
        commit_timeout_ms: int = 30_000,
        compression: int = 0,
        on_clock_set: Callable[[int, int], None] | None = None,
    ) -> None:
        self.partition = partition
        self.machine = machine
        self.observers: list[Callable[[list[LogRecord], int], None]] = []
        """Called in log order with records that are now committed and the offset after them, before their answers."""
        self.on_effect: Callable[[Any], None] = _no_effect
        """Carries out one effect of a decision."""
        self.keeps_order: Callable[[Any], bool] = lambda effect: False
        """Whether what the effect appends elsewhere is never there without what this log has now: it need not wait."""
        self.loaded = False
        self.failed: DuramenError | None = None
        """Why this host takes no more commands; None while it does."""
        self._clock = clock
        self._commit_timeout = commit_timeout_ms / 1000
        self._writer = RecordWriter(partition, machine, max_batch_bytes, compression)
        self._waiting: dict[int, OnReply] = {}
        self._last_ticket = NO_TICKET
        self._ordered: set[int] = set()
        """Tickets whose answers need not wait for the commit."""
        self._uncommitted: deque[_Uncommitted] = deque()
        self._doubt: KafkaError | None = None
        """Of what was appended below `_doubted_end` nobody could be told in time whether it is committed."""
        self._doubted_end = -1
        self._ready: deque[tuple[OnReply, Any]] = deque()
        self._delivering = False
        self._timer_table = TimerTable(clock, self._timer_fired)
        self._clock_watch = None if on_clock_set is None else _ClockWatch(clock, on_clock_set)
        self._commit_timer: Timer | None = None
        self._began = False
        self._load_watch: Callable[[], None] | None = None

    @property
    def waiting(self) -> int:
        """How many callers have no answer yet."""
        return len(self._waiting)

    # ------------------------------------------------------------------ loading

    def load(self, start: int | None = None, on_gap: Callable[[int, int], None] | None = None) -> None:
        """Replay the whole log, or what of it lies after `start`, then start the machine. on_gap: see `Replay`.

        Raises what `Replay.step` raises, and COORDINATOR_LOAD_IN_PROGRESS while the log's end is not committed yet
        (`start_loading` waits for that).
        """
        replay = self._begin_load(start, on_gap)
        if not replay.is_committed:
            raise KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, f"{self.partition.tp} is not committed yet")
        while not replay.step():
            pass
        self._finish_load()

    def begin(self) -> None:
        """Start a machine that has everything up to the end of the log already. Raises what starting it raises."""
        check(not self._began, "a host is loaded once")
        self._began = True
        self._finish_load()

    def start_loading(self, done: Callable[[DuramenError | None], None], turns: LoadTurns | None = None) -> None:
        """Like `load`, but in small slices with the loop free in between; `done(error)` at the end.

        turns: shared with other hosts that load, so that one slice of one of them is all that a turn of the loop has.
        """
        replay = self._begin_load()
        turns = turns or LoadTurns(self._clock)
        work = partial(self._load_slice, replay, done)
        if replay.is_committed:
            turns.add_load(work)
        else:
            self._load_watch = partial(self._committed_for_load, replay, turns, work)
            self.partition.watch(self._load_watch)

    def _begin_load(self, start: int | None = None, on_gap: Callable[[int, int], None] | None = None) -> Replay:
        check(not self._began, "a host is loaded once")
        self._began = True
        return Replay(self.partition, self.machine, start, on_gap)

    def _committed_for_load(self, replay: Replay, turns: LoadTurns, work: Callable[[], bool]) -> None:
        if self._load_watch is not None and replay.is_committed:
            self.partition.unwatch(self._load_watch)
            self._load_watch = None
            turns.add_load(work)

    def _load_slice(self, replay: Replay, done: Callable[[DuramenError | None], None]) -> bool:
        if self.failed is not None:
            done(self.failed)
            return True
        try:
            complete = replay.step()
            if complete:
                self._finish_load()
        except DuramenError as error:
            self.fail(error)
            done(error)
            return True
        if complete:
            done(None)
        return complete

    def _finish_load(self) -> None:
        self.loaded = True
        self.partition.watch(self._watermark_moved, self._give_up)
        now = self._now_ms()
        outcome = self.machine.on_loaded(now)
        # A machine that cannot write what its load calls for must not run: a refusal is raised here.
        if outcome.records:
            self._writer.append(outcome.records, now, outcome.producer)
        self._follow(outcome, now)

    # ------------------------------------------------------------------ commands

    def submit(self, command: Any, on_reply: OnReply, *, is_ordered: bool = False) -> None:
        """Decide `command`; `on_reply(answer)` is called once, with a KafkaError (or other DuramenError) on failure.

        is_ordered: who asks does nothing with the answer but append to a log that keeps its order with this one
        (`Store.keep_order`). It need not wait for the commit.
        """
        if self.failed is not None:
            on_reply(self.failed)
            return
        if not self.loaded:
            on_reply(KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, f"{self.partition.tp} is being loaded"))
            return
        self._last_ticket += 1
        ticket = self._last_ticket
        self._waiting[ticket] = on_reply
        if is_ordered:
            self._ordered.add(ticket)
        self._decide(command, ticket)
        self._ordered.discard(ticket)

    def resume(self, ticket: int, command: Any) -> None:
        """Decide again for a caller who still waits, with what an effect of its first command has brought."""
        if self.failed is None:
            self._decide(command, ticket)

    def end_transaction(
        self,
        producer: ProducerEpoch,
        marker: Marker,
        append: AppendMarker,
        done: Callable[[KafkaError | None], None],
    ) -> None:
        """Have `append` write the marker that ends the producer's transaction in this log; `done(None)` once it is
        committed.

        The machine sees it at once, as it sees all records, and tells nobody what follows from it before the commit.
        """
        if self.failed is not None or not self.loaded:
            code = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS if self.failed is None else ErrorCode.NOT_LEADER_OR_FOLLOWER
            done(KafkaError(code, f"{self.partition.tp} is not loaded here"))
            return
        now = self._now_ms()
        self._writer.close_open(now)
        answers: list[KafkaError | None] = []
        is_applied = False

        def answer(error: KafkaError | None) -> None:
            if is_applied:
                done(error)
            else:
                answers.append(error)

        end = self.partition.log_end_offset
        append(now, answer)
        if self.partition.log_end_offset > end:
            record = LogRecord(*marker_record(*marker))
            self.machine.apply_control(record, end, producer)
        is_applied = True
        for error in answers:
            done(error)

    def _timer_fired(self, key: Hashable) -> None:
        if self.failed is None:
            self._decide(TimerFired(key), NO_TICKET)

    def _decide(self, command: Any, ticket: int) -> None:
        now = self._now_ms()
        self._writer.close_open(now)
        try:
            outcome = self.machine.decide(command, ticket, now)
        except KafkaError as error:
            outcome = Outcome(replies=[(ticket, error)])
        self._carry_out(outcome, ticket, now)

    def _now_ms(self) -> int:
        now = self._clock.wall_ms()
        if self._clock_watch is not None:
            self._clock_watch.look(now)
        return now

    def _carry_out(self, outcome: Outcome, ticket: int, now: int) -> None:
        if outcome.records:
            try:
                self._writer.append(outcome.records, now, outcome.producer)
            except DuramenError as error:
                self._refused(outcome, ticket, error)
                return
        self._follow(outcome, now)

    def _follow(self, outcome: Outcome, now: int) -> None:
        """Everything after the append: set the timers, park or give the answers."""
        replies, effects, at_once = outcome.replies, outcome.effects, []
        if self._ordered:
            self._answer([reply for reply in replies if reply[0] in self._ordered])
            replies = [reply for reply in replies if reply[0] not in self._ordered]
        if effects:
            at_once = [effect for effect in effects if self.keeps_order(effect)]
            effects = [effect for effect in effects if effect not in at_once]
        for key, due in outcome.timers:
            self._timer_table.set(key, None if due is None else (due - now) / 1000)
        self._park(outcome, replies, effects)
        self._start_effects(at_once)
        self._deliver()

    def _park(self, outcome: Outcome, replies: list[tuple[int, Any]], effects: list[Any]) -> None:
        """What waits for the commit, if there is something to wait for."""
        if not replies and not outcome.records and not effects:
            return
        if outcome.immediate and not outcome.records:
            self._answer_unwritten(replies)
            self._start_effects(effects)
        else:
            end = self.partition.log_end_offset
            if self._doubt is not None and not outcome.records and self.partition.high_watermark < self._doubted_end:
                # Nobody knows how long it will be, and whoever was given up waits no longer either.
                self._answer([(ticket, self._doubt) for ticket, _ in replies])
                if effects:
                    self._uncommitted.append(_Uncommitted(end, math.inf, [], [], effects))
            elif outcome.records or self._uncommitted or self.partition.high_watermark < end:
                overdue = self._clock.monotonic() + self._commit_timeout
                self._uncommitted.append(_Uncommitted(end, overdue, outcome.records, replies, effects))
                self._watermark_moved()
                self._arm_commit_timer()
            else:
                self._answer_unwritten(replies)
                self._start_effects(effects)

    def _refused(self, outcome: Outcome, ticket: int, error: DuramenError) -> None:
        """Answer everybody whom the refused decision concerned with the error, then let the machine take back."""
        tickets = [waiting for waiting, _ in outcome.replies]
        if ticket not in tickets:
            tickets.append(ticket)
        self._answer([(waiting, error) for waiting in tickets])
        if outcome.if_refused is not None and self.failed is None:
            self._decide(outcome.if_refused, NO_TICKET)
        self._deliver()

    # ------------------------------------------------------------------ commits and answers

    def _watermark_moved(self) -> None:
        uncommitted = self._uncommitted
        watermark = self.partition.high_watermark
        while uncommitted and uncommitted[0].end <= watermark:
            entry = uncommitted.popleft()
            if entry.records:
                self._ready.append((self._observed, entry))
                self._answer(entry.replies)
            else:
                self._answer_unwritten(entry.replies)
            self._start_effects(entry.effects)
        if not uncommitted and self._commit_timer is not None:
            self._commit_timer.cancel()
            self._commit_timer = None
        self._deliver()

    def _arm_commit_timer(self) -> None:
        if self._commit_timer is None:
            pending = next((entry for entry in self._uncommitted if entry.replies), None)
            if pending is not None:
                delay = max(pending.due - self._clock.monotonic(), 0.0)
                self._commit_timer = self._clock.call_later(delay, self._commit_overdue)

    def _commit_overdue(self) -> None:
        self._commit_timer = None
        error = KafkaError(ErrorCode.REQUEST_TIMED_OUT, f"{self.partition.tp}: not committed in time, outcome unknown")
        self._give_up(error, self._clock.monotonic())
        self._arm_commit_timer()

    def _give_up(self, error: KafkaError, until: float = math.inf) -> None:
        """The records stay queued: observers still learn of their commit, only nobody waits any longer."""
        for entry in self._uncommitted:
            if entry.due <= until:
                self._doubt, self._doubted_end = error, entry.end
                replies, entry.replies = entry.replies, []
                self._answer([(ticket, error) for ticket, _ in replies])
        self._deliver()

    def _answer(self, replies: list[tuple[int, Any]]) -> None:
        for ticket, answer in replies:
            on_reply = self._waiting.pop(ticket, None)
            if on_reply is not None:
                self._ready.append((on_reply, answer))

    def _answer_unwritten(self, replies: list[tuple[int, Any]]) -> None:
        """Answers for which no record of theirs was committed: where another node may lead, that one knows better."""
        if replies and not self.partition.may_answer:
            error = KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"{self.partition.tp} may be led elsewhere by now")
            replies = [(ticket, error) for ticket, _ in replies]
        self._answer(replies)

    def _start_effects(self, effects: list[Any]) -> None:
        self._ready.extend((self.on_effect, effect) for effect in effects)

    def _observed(self, entry: _Uncommitted) -> None:
        for observer in self.observers:
            observer(entry.records, entry.end)

    def _deliver(self) -> None:
        """Call observers and callers, in order even when one of them submits the next command from its callback."""
        if self._delivering:
            return
        self._delivering = True
        try:
            while self._ready:
                on_reply, answer = self._ready.popleft()
                on_reply(answer)
        finally:
            self._delivering = False

    # ------------------------------------------------------------------ the end

    def fail(self, error: DuramenError) -> None:
        """Take no more commands and answer every caller with `error`; the log has to be replayed by a new host."""
        if self.failed is not None:
            return
        self.failed = error
        self._timer_table.clear()
        if self._commit_timer is not None:
            self._commit_timer.cancel()
            self._commit_timer = None
        if self.loaded:
            self.partition.unwatch(self._watermark_moved)
        if self._load_watch is not None:
            self.partition.unwatch(self._load_watch)
            self._load_watch = None
        self._uncommitted.clear()
        waiting = list(self._waiting)
        self._answer([(ticket, error) for ticket in waiting])
        self._deliver()

    def close(self) -> None:
        """Stop: callers without an answer get a ClosedError."""
        self.fail(ClosedError(f"{self.partition.tp}: the host was closed"))
