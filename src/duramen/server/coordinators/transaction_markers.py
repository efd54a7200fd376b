"""Writes the markers of decided transactions into their partitions, wherever these are led, until each has its own.

A partition that is not led by anybody now, or whose leader refuses for a while, is tried again, with the leader of
then. What a stop or a crash takes is begun again by the coordinator that loads the transaction's record.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Final, NamedTuple, Protocol

from duramen.errors import ErrorCode, KafkaError
from duramen.machines.contract import ProducerEpoch
from duramen.machines.metadata.image import NO_LEADER, MetadataImage
from duramen.machines.transaction.commands import MarkersAbandoned, MarkersWritten, WriteMarkers
from duramen.model import OFFSETS_TOPIC, TopicPartition
from duramen.partition.host.host import Host
from duramen.partition.replica import transactional_writes
from duramen.partition.store.store import Store
from duramen.ports import Clock
from duramen.server.api.services import EventReport

AT_ONCE: Final = 100
"""Markers that are written here in one turn of the loop, or sent together."""
FIRST_PAUSE_S: Final = 0.02
LONGEST_PAUSE_S: Final = 1.0
TOLD_AFTER_S: Final = 10.0
"""After this a partition whose marker cannot be written is named in the log, once for each transaction."""
SHOWN_CHARACTERS: Final = 200

WRITTEN: Final = frozenset(
    {
        ErrorCode.NONE,
        # A later epoch is known there: what this marker would end is over.
        ErrorCode.INVALID_PRODUCER_EPOCH,
        # As in Kafka: such a partition took no record of a transaction.
        ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT,
        ErrorCode.UNSUPPORTED_VERSION,
    }
)
"""What leaves nothing to be done in a partition."""

Codes = dict[TopicPartition, ErrorCode]


class MarkerErrand(NamedTuple):
    """What is written to partitions of one leader."""

    producer: ProducerEpoch
    commit: bool
    coordinator_epoch: int
    transaction_version: int
    partitions: tuple[TopicPartition, ...]


class MarkingCoordinator(Protocol):
    """Whose transactions are ended. epoch: as its markers say it."""

    @property
    def host(self) -> Host: ...

    @property
    def epoch(self) -> int: ...


class OffsetsPartitions(Protocol):
    """Those of `__consumer_offsets` here, which take markers through their coordinators."""

    def end_transaction(
        self,
        index: int,
        producer: ProducerEpoch,
        commit: bool,
        coordinator_epoch: int,
        transaction_version: int,
        done: Callable[[KafkaError | None], None],
    ) -> None: ...


class OtherNodes(Protocol):
    """Takes markers to leaders elsewhere; an empty answer: it is not known what became of them."""

    def write_markers(self, node_id: int, marker: MarkerErrand, done: Callable[[Codes], None]) -> None: ...


class _Ending:
    """One transaction on its way from Prepare to Complete."""

    __slots__ = ("coordinator", "effect", "is_told", "left", "started")

    def __init__(self, coordinator: MarkingCoordinator, effect: WriteMarkers, started: float) -> None:
        self.coordinator = coordinator
        self.effect = effect
        self.started = started
        self.left = set(effect.partitions)
        self.is_told = False


class MarkerSender:
    """Of one node. Loop thread only."""

    def __init__(
        self,
        clock: Clock,
        store: Store,
        image: Callable[[], MetadataImage],
        node_id: int,
        offsets: OffsetsPartitions,
        others: Callable[[], OtherNodes],
        report: EventReport,
        keeps_order: Callable[[MarkingCoordinator, Iterable[TopicPartition]], bool],
    ) -> None:
        self._clock = clock
        self._store = store
        self._image = image
        self._node_id = node_id
        self._offsets = offsets
        self._others = others
        self._report = report
        self._keeps_order = keeps_order
        self._endings: dict[tuple[MarkingCoordinator, str], _Ending] = {}
        self._closed = False
        self.written = 0
        """Markers that are committed, by this node's coordinators."""

    @property
    def waiting(self) -> int:
        """Transactions that lack markers."""
        return len(self._endings)

    @property
    def oldest_seconds(self) -> float:
        """Since when the oldest of them does; 0 without one."""
        now = self._clock.monotonic()
        return max((now - each.started for each in self._endings.values()), default=0.0)

    def start(self, coordinator: MarkingCoordinator, effect: WriteMarkers) -> None:
        """Write them; the coordinator's machine hears of those that are written."""
        key = coordinator, effect.transactional_id
        running = self._endings.get(key)
        if running is not None and running.effect.decided_ms == effect.decided_ms:
            return  # asked for once more
        ending = self._endings[key] = _Ending(coordinator, effect, self._clock.monotonic())
        self._send(ending, effect.partitions, FIRST_PAUSE_S)

    def _is_over(self, ending: _Ending) -> bool:
        """Whether somebody else has the transaction, or its markers are not needed any more."""
        key = ending.coordinator, ending.effect.transactional_id
        is_current = self._endings.get(key) is ending
        if is_current and (self._closed or ending.coordinator.host.failed is not None):
            del self._endings[key]
            return True
        return not is_current

    # ---- sending ---------------------------------------------------------------------------------------------

    def _send(self, ending: _Ending, partitions: Iterable[TopicPartition], pause: float) -> None:
        """To the leaders of now, in pieces; each is settled, and tried again, by itself."""
        if self._is_over(ending):
            return
        image = self._image()
        by_leader: dict[int, list[TopicPartition]] = {}
        gone = []
        for tp in sorted(partitions):
            known = image.partition(tp)
            if known is None:
                gone.append(tp)
            else:
                by_leader.setdefault(image.leader(known), []).append(tp)
        if gone:
            self._settle(ending, gone, pause, dict.fromkeys(gone, ErrorCode.NONE))
        is_first = True
        for leader, led in by_leader.items():
            for start in range(0, len(led), AT_ONCE):
                piece = led[start : start + AT_ONCE]
                if leader == NO_LEADER:
                    self._settle(ending, piece, pause, {})
                elif leader != self._node_id:
                    marker = self._marker(ending, piece)
                    self._others().write_markers(leader, marker, partial(self._settle, ending, piece, pause))
                elif is_first:
                    is_first = False
                    self._write(ending, piece, pause)
                else:  # each piece has a turn of the loop
                    self._clock.call_soon(partial(self._write, ending, piece, pause))

    def _marker(self, ending: _Ending, piece: list[TopicPartition]) -> MarkerErrand:
        effect = ending.effect
        return MarkerErrand(
            effect.producer, effect.commit, ending.coordinator.epoch, effect.transaction_version, tuple(piece)
        )

    def _write(self, ending: _Ending, piece: list[TopicPartition], pause: float) -> None:
        if self._is_over(ending):
            return
        done = partial(self._settle, ending, piece, pause)
        is_ordered = self._keeps_order(ending.coordinator, piece)

        def ordered(codes: Codes) -> None:
            self._keeps_order(ending.coordinator, piece)  # of what was appended by now
            done(codes)

        self.write_here(self._marker(ending, piece), ordered if is_ordered else done, is_ordered=is_ordered)

    def write_here(self, marker: MarkerErrand, done: Callable[[Codes], None], *, is_ordered: bool = False) -> None:
        """Append it to partitions that are led here; `done` with what became of each, once all have answered.

        is_ordered: once they are appended; see `transactional_writes.append_marker`.
        """
        codes: Codes = {}
        producer, commit, epoch, version, partitions = marker
        now = self._clock.wall_ms()

        def answered(tp: TopicPartition, error: KafkaError | None) -> None:
            codes[tp] = ErrorCode.NONE if error is None else error.code
            if len(codes) == len(partitions):
                done(codes)

        for tp in partitions:
            each = partial(answered, tp)
            partition = self._store.partitions.get(tp)
            if tp.topic == OFFSETS_TOPIC:
                self._offsets.end_transaction(tp.partition, producer, commit, epoch, version, each)
            elif partition is None:
                each(KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"{tp} is not here"))
            else:
                transactional_writes.append_marker(
                    partition, producer, commit, epoch, version, now, each, is_ordered=is_ordered
                )

    # ---- what became of them ---------------------------------------------------------------------------------

    def _settle(self, ending: _Ending, piece: list[TopicPartition], pause: float, codes: Codes) -> None:
        if self._is_over(ending):
            return
        effect, host = ending.effect, ending.coordinator.host
        if ErrorCode.TRANSACTION_COORDINATOR_FENCED in codes.values():
            # Another one is known there. Where it is the newer one, this node hears of that before long.
            del self._endings[ending.coordinator, effect.transactional_id]
            host.submit(MarkersAbandoned(effect.transactional_id, effect.producer, effect.decided_ms), _ignore)
            return
        written = [tp for tp in piece if codes.get(tp) in WRITTEN]
        again = [tp for tp in piece if codes.get(tp) not in WRITTEN]
        self.written += len(written)
        ending.left.difference_update(written)
        if not ending.left:
            del self._endings[ending.coordinator, effect.transactional_id]
        if again:
            self._tell(ending, again[0], codes)
            longer = min(2 * pause, LONGEST_PAUSE_S)
            self._clock.call_later(pause, partial(self._send, ending, again, longer))
        if written:
            told = MarkersWritten(effect.transactional_id, effect.producer, tuple(written), effect.decided_ms)
            host.submit(told, _ignore)

    def _tell(self, ending: _Ending, tp: TopicPartition, codes: Codes) -> None:
        seconds = self._clock.monotonic() - ending.started
        if ending.is_told or seconds < TOLD_AFTER_S:
            return
        ending.is_told = True
        code = codes.get(tp)
        self._report(
            "transaction-markers-waiting",
            transactional_id=ending.effect.transactional_id[:SHOWN_CHARACTERS],
            partition=str(tp),
            error="its leader cannot be reached" if code is None else code.name,
            seconds=int(seconds),
            remedy="the transaction ends, and consumers of committed records go on, when the partition has a leader "
            "and enough replicas in sync",
        )

    def close(self) -> None:
        """Nothing more is written."""
        self._closed = True
        self._endings.clear()


def _ignore(_: Any) -> None:
    """A refused record is the machine's to write again; one of a coordinator that ended is the next one's."""
