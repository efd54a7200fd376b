"""The lease of a broker as a model: heartbeats, fencing, controllers that follow each other, and time in ticks.

What a leader acknowledges by its own word (`acks=1`, for one) it may acknowledge while it has a lease. Whether it still
leads is committed elsewhere: once the controller has fenced it others lead, and it may not have heard. So no lease may
last until then. Each rule that this rests on can be taken out, as in the other models (`tests.models.quorum`).

The metadata log is a number here: every second entry fences the broker and ends the epoch that it leads, the others
unfence it and have it lead anew. Time passes by ticks, between any two steps as many as there may be: nothing is ever
prompt. A heartbeat is sent, arrives at a controller, and its answer is taken; in between it waits for as long as it
likes, or is lost. A controller that another one has replaced, and that does not know it, answers on as things stood
then; it can commit nothing. Whether a majority still follows the active one is what a heartbeat may have to wait for.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

SESSION: Final = 4
"""Ticks of silence for which the controller fences."""
LEASE: Final = 3
"""Of the broker's own clock, which counts one tick less than there are in a session (`Bounds.slips`) at worst."""
LONGER: Final = 2
"""By how much the broker's own session is longer, where it is another one."""

RULES: Final = {
    "from-sending": "a lease runs from when the heartbeat was sent, not from when it was answered",
    "shorter": "a lease is shorter than the session, by what two clocks may differ",
    "looked-at": "the clock is looked at when something is acknowledged by the lease: no timer ends it",
    "proven": "a controller answers a heartbeat when a majority has followed it since it arrived",
    "full-session": "a new controller gives everybody a full session",
    "none-while-fenced": "the answer to a broker that is fenced gives no lease",
    "unfence-when-read": "a broker is unfenced when it has read that it was fenced",
    "dead-at-once": "who is fenced at once is dead: the connection ended, and its address refuses",
    "one-session": "the broker counts by no longer session than the controller",
}


class Bounds(NamedTuple):
    """How much happens. beats: heartbeats on the way at once; slips: ticks that the broker's clock does not count;
    resets: connections that end between two living processes."""

    fences: int = 1
    elections: int = 0
    beats: int = 1
    slips: int = 0
    resets: int = 0


class Beat(NamedTuple):
    """A heartbeat on its way. age: ticks since it was sent, by the broker's clock; read: what it says to have read."""

    age: int
    read: int
    has_arrived: bool = False
    is_current: bool = False
    """Arrived at the controller that is active still."""
    is_proven: bool = False
    is_fenced: bool = False
    """What it is answered."""


class State(NamedTuple):
    written: int = 0
    """Entries of the metadata log: the broker is fenced behind an odd number of them."""
    read: int = 0
    """How many the broker has read."""
    left: int = 0
    """Ticks of its lease."""
    is_held: bool = False
    """Whether it goes by its lease."""
    since: int = 0
    """Ticks since the active controller heard the broker."""
    beats: tuple[Beat, ...] = ()
    deposed: tuple[int, ...] = ()
    """Controllers that do not know that they are deposed: the entries of each."""
    slips: int = 0
    resets: int = 0


class Lease:
    """The steps of one broker and its controllers. without: a rule of RULES that does not hold."""

    def __init__(self, bounds: Bounds, without: str = "") -> None:
        self.bounds = bounds
        self.rules = frozenset(RULES) - {without}
        self.most = 2 * bounds.fences
        self.ticks = LEASE if "shorter" in self.rules else SESSION
        if "one-session" not in self.rules:
            self.ticks += LONGER

    @staticmethod
    def first() -> State:
        return State()

    @staticmethod
    def canonical(state: State) -> State:
        return state

    @staticmethod
    def violation(state: State) -> str | None:
        leads = state.read % 2 == 0
        if state.is_held and leads and state.written > state.read:
            return "acknowledged by a lease in an epoch that is over"
        return None

    def steps(self, state: State) -> Iterator[tuple[str, State]]:
        bounds = self.bounds
        yield "a tick", self._tick(state, 1)
        if state.slips < bounds.slips:
            yield "a tick that the broker's clock does not count", self._tick(state, 0)._replace(slips=state.slips + 1)
        if state.read < state.written:
            yield f"the broker reads entry {state.read + 1}", state._replace(read=state.read + 1)
        if state.is_held and not state.left:
            yield "the lease's timer runs", state._replace(is_held=False)
        if len(state.beats) < bounds.beats:
            yield "the broker sends a heartbeat", _beating(state, (*state.beats, Beat(0, state.read)))
        for number, beat in enumerate(state.beats):
            others = (*state.beats[:number], *state.beats[number + 1 :])
            if not beat.has_arrived:
                yield from self._arrive(state, beat, others)
            elif beat.is_proven or "proven" not in self.rules:
                yield "the broker hears the answer", self._hear(_beating(state, others), beat)
            elif beat.is_current:
                followed = beat._replace(is_proven=True)
                yield "a majority follows the controller", _beating(state, (*others, followed))
            yield "a heartbeat is lost", _beating(state, others)
        if state.written % 2 == 0 and state.written < self.most:
            if state.since >= SESSION:
                yield "the controller fences the broker", state._replace(written=state.written + 1)
            if state.resets < bounds.resets and "dead-at-once" not in self.rules:
                after = state._replace(written=state.written + 1, resets=state.resets + 1)
                yield "a connection ends, and the controller fences the broker", after
        if len(state.deposed) < bounds.elections:
            yield "another controller is elected", self._elect(state)

    def _tick(self, state: State, counted: int) -> State:
        left = max(0, state.left - counted)
        is_held = left > 0 if "looked-at" in self.rules else state.is_held
        beats = tuple(beat._replace(age=min(beat.age + counted, self.ticks)) for beat in state.beats)
        after = state._replace(left=left, is_held=is_held, since=min(state.since + 1, SESSION))
        return _beating(after, beats)

    def _arrive(self, state: State, beat: Beat, others: tuple[Beat, ...]) -> Iterator[tuple[str, State]]:
        """At the active controller, or at one that believes it is."""
        arrived = beat._replace(has_arrived=True, is_current=True, is_fenced=state.written % 2 == 1)
        after = state
        if not arrived.is_fenced:
            after = state._replace(since=0)
        elif beat.read == state.written or "unfence-when-read" not in self.rules:
            arrived = arrived._replace(is_fenced=False)
            after = state._replace(written=state.written + 1, since=0)
        yield "a heartbeat arrives at the controller", _beating(after, (*others, arrived))
        for written in sorted(set(state.deposed)):
            # One that it would unfence is not answered: it can commit nothing.
            arrived = beat._replace(has_arrived=True, is_fenced=written % 2 == 1)
            yield "a heartbeat arrives at a deposed controller", _beating(state, (*others, arrived))

    def _hear(self, state: State, beat: Beat) -> State:
        if beat.is_fenced and "none-while-fenced" in self.rules:
            return state
        age = beat.age if "from-sending" in self.rules else 0
        left = max(state.left, self.ticks - age)
        return state._replace(left=left, is_held=state.is_held or left > 0)

    def _elect(self, state: State) -> State:
        since = 0 if "full-session" in self.rules else SESSION
        beats = tuple(beat._replace(is_current=False) for beat in state.beats)
        after = state._replace(since=since, deposed=tuple(sorted((*state.deposed, state.written))))
        return _beating(after, beats)


def _beating(state: State, beats: tuple[Beat, ...]) -> State:
    return state._replace(beats=tuple(sorted(beats)))
