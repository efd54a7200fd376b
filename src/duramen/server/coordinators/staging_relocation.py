"""Frees the staging log under records that nobody commits: they are copied to its end, and it may start behind them.

A log is deleted from its beginning only. What a driver staged before it went may still be committed, so it cannot be
dropped before its time; but it need not keep what was staged after it. The oldest piece is read, appended again, and
its handle's record says where it is from then on. A crash in between leaves the old place in force.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

from duramen.errors import DuramenError, KafkaError
from duramen.machines.sink.commands import MoveStaged
from duramen.machines.sink.footprint import needed_bytes, oldest_staged
from duramen.machines.sink.pieces import Pieces, StagedRange
from duramen.machines.sink.state import Staged
from duramen.partition.metadata.controller import SINK_SEGMENT_BYTES
from duramen.partition.sinks.staging import Chunk, ShareReader

if TYPE_CHECKING:
    from duramen.ports import Clock, Submit
    from duramen.server.api.services import SinkHost


class RelocationRules(NamedTuple):
    """When it is worth it.

    idle_bytes: so many behind the oldest piece that nobody needs; and never fewer than those that are needed, so that
    no byte is copied for less than one that goes.
    settled_ms: age from which on a piece is not about to be committed.
    retry_ms: after a failure.
    """

    idle_bytes: int = 2 * SINK_SEGMENT_BYTES
    settled_ms: int = 60_000
    retry_ms: int = 60_000


class Relocation:
    """Of one coordinator's staging log; one piece at a time, which is in memory as a whole (staged.max.bytes)."""

    def __init__(
        self,
        coordinator: SinkHost,
        rules: RelocationRules,
        clock: Clock,
        submit: Submit,
        report: Callable[..., None],
    ) -> None:
        """submit: runs work off the loop. report(event, **fields): what an operator should see."""
        self._coordinator = coordinator
        self._rules = rules
        self._clock = clock
        self._submit = submit
        self._report = report
        self._busy = False
        self._not_before = 0.0
        self.moved = 0

    def look(self) -> None:
        """Begin to move the piece that holds up the most, if it holds up enough."""
        sinks = self._coordinator.machine.sinks.values()
        if self._busy or self._clock.monotonic() < self._not_before:
            return
        needed = needed_bytes(sinks)
        enough = needed + max(self._rules.idle_bytes, needed)
        if self._coordinator.staging.log.size < enough:
            return  # as mostly: nobody has to look through all that is staged
        oldest = oldest_staged(sinks)
        if oldest is None or self._clock.wall_ms() - oldest[2].staged_ms < self._rules.settled_ms:
            return
        if self._held_up(oldest[2].first_offset) >= enough:
            self._busy = True
            _Move(self, *oldest).read()

    def _held_up(self, offset: int) -> int:
        """Bytes of the segments that stay while `offset` is needed; 0 in the last one, where a copy would go, too."""
        segments = self._coordinator.staging.log.segments
        kept = [segment.size for segment, after in pairwise(segments) if after.base_offset > offset]
        return sum(kept) + segments[-1].size if kept else 0

    # ---- for the move ----------------------------------------------------------------------------------------

    @property
    def coordinator(self) -> SinkHost:
        return self._coordinator

    @property
    def clock(self) -> Clock:
        return self._clock

    def off_loop(self, chunk: Chunk, done: Callable[[Any, BaseException | None], None]) -> None:
        self._submit("staging", chunk.run, done)

    def ended(self, error: BaseException | None, *, moved: bool = False) -> None:
        """It is where it should be, or means nothing any more, or another try follows."""
        self._busy = False
        self.moved += moved
        if error is not None:
            self._not_before = self._clock.monotonic() + self._rules.retry_ms / 1000
            self._report("staging-not-moved", partition=str(self._coordinator.staging.tp), error=error)
        elif moved:
            self._clock.call_soon(self.look)


class _Move:
    """One handle's records on their way to the end of the log."""

    def __init__(self, owner: Relocation, sink_id: str, handle: int, staged: Staged) -> None:
        self._owner = owner
        self._sink_id = sink_id
        self._handle = handle
        self._staged = staged
        piece = StagedRange(staged.first_offset, staged.next_offset, staged.bytes)
        self._reader = ShareReader(owner.coordinator.staging, Pieces([piece]), None, 0)
        self._batches: list[bytearray] = []
        self._recorded: Callable[[], None] = _nothing

    @property
    def is_wanted(self) -> bool:
        """Whether it is still staged; else it was committed or given up meanwhile."""
        sink = self._owner.coordinator.machine.sinks.get(self._sink_id)
        return sink is not None and sink.staged.get(self._handle) == self._staged

    def read(self) -> None:
        if not self.is_wanted:
            self._owner.ended(None)
            return
        if self._reader.is_over:
            self._store()
            return
        try:
            chunk = self._reader.take()
        except (DuramenError, OSError) as error:
            self._owner.ended(error)
            return
        self._owner.off_loop(chunk, partial(self._have_read, chunk))

    def _have_read(self, chunk: Chunk, _: object, error: BaseException | None) -> None:
        if error is not None:
            if not isinstance(error, DuramenError | OSError):
                raise error
            self._owner.ended(error if self.is_wanted else None)
            return
        chunk.complete()
        self._reader.took(chunk)
        self._batches += chunk.out
        self.read()

    def _store(self) -> None:
        owner = self._owner
        views = [memoryview(batch) for batch in self._batches]
        self._recorded = owner.coordinator.store([views], owner.clock.wall_ms(), self._stored)

    def _stored(self, pieces: list[StagedRange] | KafkaError) -> None:
        if isinstance(pieces, KafkaError):
            self._end(pieces)
            return
        command = MoveStaged(self._sink_id, self._handle, self._staged.first_offset, pieces[0].first_offset)
        self._owner.coordinator.host.submit(command, self._decided)

    def _decided(self, answer: Any) -> None:
        if isinstance(answer, DuramenError):
            self._end(answer)
        else:
            self._end(None, moved=bool(answer))

    def _end(self, error: DuramenError | None, *, moved: bool = False) -> None:
        # What is appended may be settled before `store` has returned.
        self._owner.clock.call_soon(lambda: self._recorded())
        self._owner.ended(error, moved=moved)


def _nothing() -> None:
    """Before anything is stored."""
