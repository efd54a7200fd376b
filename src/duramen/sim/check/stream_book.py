"""What is known of every stream of a simulated world: who closed it, who may write to it, what was acknowledged where.

The book hears what writers are told at the moment they learn it, and gets the whole logs at the end, control records
included. An answer is held against what was known when its question was sent (`asked`, a number of a fact of the
ledger).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Final, NamedTuple

from duramen.errors import ErrorCode
from duramen.machines.contract import ProducerEpoch
from duramen.model import NO_EPOCH, TopicPartition, is_named
from duramen.sim.check.coverage import Coverage
from duramen.sim.check.invariants import HighestKnown, InvariantViolated, Ledger

STREAM_INVARIANTS: Final = {
    "FencedUnacknowledged": "no append of a writer is acknowledged, or in the log, once the stream is open for another",
    "OneAtAPosition": "of two conditional appends at one position one succeeds and is there; what is refused is not",
    "NothingBehindAClose": "nothing is acknowledged or stored behind a close; who hears of one finds it there for ever",
    "NamedOnce": "each batch of a named writer is there once, in order, and none is missing that was acknowledged",
    "PositionLasts": "a position names one record for ever: what it leads to is that, or the news that it is gone",
    "TxidsNeverStepBack": "no transaction id of a record is below that of the record before it",
    "ReadOnce": "a reader is given every record of a stream once, in order, whoever shares its reads",
}
"""What is checked, by name."""


class Sent(NamedTuple):
    """An append as its writer asks for it. expected: the offset, -1: anywhere; epoch: that of the record in front of
    it, -1: any. asked: the fact known by then.

    txids: its records' timestamps where they are that; empty: the time at which it is sent first.
    """

    values: tuple[bytes, ...]
    producer: ProducerEpoch | None = None
    sequence: int = -1
    expected: int = -1
    closes: bool = False
    asked: int = 0
    txids: tuple[int, ...] = ()
    epoch: int = NO_EPOCH


class Stored(NamedTuple):
    """What an acknowledgement says. epoch: the leader's, -1 where it is not known; end: of the log, -1 likewise;
    end_epoch: of the record in front of that.
    """

    base: int
    epoch: int
    end: int
    is_duplicate: bool
    end_epoch: int = NO_EPOCH


class StreamBatch(NamedTuple):
    """A batch of the log. closes: a close's record; opens: whom a record opens the stream for (-1: for nobody).

    txids: timestamps of its records, whichever.
    """

    base: int
    epoch: int
    producer: ProducerEpoch
    sequence: int
    values: list[bytes]
    closes: bool = False
    opens: int | None = None
    txids: tuple[int, ...] = ()


class StreamBook:
    """Of one world."""

    def __init__(self, ledger: Ledger, coverage: Coverage) -> None:
        self.ledger = ledger
        self.coverage = coverage
        self.close_asked: set[TopicPartition] = set()
        self.has_damage = False
        """Whether a bit has changed somewhere."""
        self._closed: dict[TopicPartition, int] = {}
        """The end behind its close, where one was acknowledged."""
        self._heard_closed: dict[TopicPartition, str] = {}
        """Who was the first to hear that it is closed, and how."""
        self._opened: defaultdict[TopicPartition, dict[int, int]] = defaultdict(dict)
        """By producer id: the end behind the record that opened the stream for it."""
        self._fence: defaultdict[TopicPartition, HighestKnown] = defaultdict(HighestKnown)
        self._taken: defaultdict[TopicPartition, dict[int, bytes]] = defaultdict(dict)
        """By expected offset: the first value that was acknowledged there."""
        self._expected: defaultdict[TopicPartition, dict[bytes, tuple[int, int]]] = defaultdict(dict)
        """Where the log had to end for the value to be appended, behind a record of which epoch, as was asked last."""
        self._refused: defaultdict[TopicPartition, dict[bytes, ErrorCode]] = defaultdict(dict)
        """By first value: what refused an append without a producer."""
        self._maybe: set[bytes] = set()
        """First values of those that may be stored, for all that was answered."""
        self._named: defaultdict[tuple[TopicPartition, int], HighestKnown] = defaultdict(HighestKnown)
        """Of a named writer: the newest epoch with an acknowledged batch."""
        self._names: defaultdict[TopicPartition, dict[int, tuple[int, bytes]]] = defaultdict(dict)
        """Epoch and value of what was acknowledged, by offset, until power fails where it need not last."""
        self._missing: defaultdict[TopicPartition, dict[bytes, int]] = defaultdict(dict)
        """Acknowledged values of named writers whose offsets nobody was told; which batch (its sequence)."""

    def fail(self, invariant: str, detail: str) -> None:
        """The promise is broken."""
        raise InvariantViolated(invariant, detail)

    def power_failed(self) -> None:
        """What page-cache topics hold may be gone; closes and openings are not."""
        for tp in [*self._names]:
            if not self.ledger.lasts(tp):
                del self._names[tp]
                self._missing.pop(tp, None)
                self._taken.pop(tp, None)
                for key in [key for key in self._named if key[0] == tp]:
                    del self._named[key]

    def damaged(self) -> None:
        """A bit at rest has changed. In a page-cache log after a power cut that cannot be told from a torn tail: what
        follows may be gone, closes and openings, too.
        """
        self.has_damage = True
        for known in (self._closed, self._heard_closed, self._opened, self._fence):
            self.ledger.forget(known)

    # ---- what writers do and are told --------------------------------------------------------------------------

    def sent(self, tp: TopicPartition, append: Sent) -> None:
        """A writer is about to send this."""
        if append.expected >= 0 and append.values:
            self._expected[tp][append.values[0]] = append.expected, append.epoch

    def refused(self, tp: TopicPartition, append: Sent, code: ErrorCode) -> None:
        """A conditional append without a producer was answered with an error that says that nothing was stored."""
        if append.values:
            self._refused[tp][append.values[0]] = code

    def left_open(self, append: Sent) -> None:
        """It may be stored, or is."""
        self._maybe |= set(append.values[:1])

    def opened(self, tp: TopicPartition, producer_id: int, end: int) -> None:
        """OpenWriter was answered: the record that says so ends there. producer_id -1: for nobody."""
        self.ledger.facts += 1
        if producer_id >= 0:
            if producer_id in self._opened[tp]:
                self.fail("FencedUnacknowledged", f"{tp}: producer {producer_id} is given to a second writer")
            self._opened[tp][producer_id] = end
        self._fence[tp].learn(self.ledger.facts, end)

    def acknowledged(self, tp: TopicPartition, sent: Sent, stored: Stored) -> None:
        """An append, a close, or both took effect."""
        self.ledger.facts += 1
        if sent.closes:
            self._close_known(tp, stored.end)
        if not sent.values:
            return
        end = stored.base + len(sent.values)
        if tp in self._closed and end > self._closed[tp]:
            self.fail(
                "NothingBehindAClose", f"{tp}: {sent.values} is stored at {stored.base}, closed at {self._closed[tp]}"
            )
        if sent.producer is not None:
            self._check_writer(tp, sent, sent.producer, stored)
        if sent.expected >= 0 and not stored.is_duplicate:
            self._check_expected(tp, sent, stored)
        if not self.ledger.lasts(tp, sent.asked):
            return
        if stored.base >= 0:
            for delta, value in enumerate(sent.values):
                self._name(tp, stored.base + delta, stored.epoch, value)
        else:
            self._missing[tp].update(dict.fromkeys(sent.values, sent.sequence))

    def heard_closed(self, tp: TopicPartition, who: str) -> None:
        """A writer was refused for it, or a reader was given the end."""
        self._heard_closed.setdefault(tp, who)

    def _close_known(self, tp: TopicPartition, end: int) -> None:
        before = self._closed.setdefault(tp, end)
        if before != end:
            self.fail("NothingBehindAClose", f"{tp}: closed with the end {before}, then with the end {end}")

    def _check_writer(self, tp: TopicPartition, sent: Sent, producer: ProducerEpoch, stored: Stored) -> None:
        opened = self._opened[tp].get(producer.id)
        if opened is not None:
            later = [end for end in self._opened[tp].values() if opened < end <= stored.base]
            if later or self._fence[tp].at(sent.asked) > opened:
                fence = max([*later, self._fence[tp].at(sent.asked)])
                detail = f"{tp}: {sent.values} of producer {producer.id} is acknowledged at {stored.base}"
                self.fail("FencedUnacknowledged", f"{detail}; it was opened at {opened}, and for others at {fence}")
        if is_named(producer.id):
            known = self._named[tp, producer.id]
            if known.at(sent.asked) > producer.epoch:
                newer = known.at(sent.asked)
                self.fail(
                    "NamedOnce", f"{tp}: {sent.values} of epoch {producer.epoch} is acknowledged, known is {newer}"
                )
            known.learn(self.ledger.facts, producer.epoch)

    def _check_expected(self, tp: TopicPartition, sent: Sent, stored: Stored) -> None:
        if stored.base != sent.expected:
            self.fail("OneAtAPosition", f"{tp}: {sent.values} was to be at {sent.expected}, and is at {stored.base}")
        first = self._taken[tp].setdefault(sent.expected, sent.values[0])
        if first != sent.values[0]:
            self.fail("OneAtAPosition", f"{tp}: {first!r} and {sent.values[0]!r} are both at {sent.expected}")

    def _name(self, tp: TopicPartition, offset: int, epoch: int, value: bytes) -> None:
        known = self._names[tp].get(offset)
        if known is None or known[0] == NO_EPOCH:
            known = self._names[tp][offset] = (epoch, value)
        if known[1] != value or epoch not in (NO_EPOCH, known[0]):
            self.fail("PositionLasts", f"{tp} offset {offset}: {known}, then {(epoch, value)}")

    # ---- the logs ----------------------------------------------------------------------------------------------

    def log_read(self, tp: TopicPartition, start: int, end: int, batches: Sequence[StreamBatch]) -> None:
        """Everything in the partition, from its start to its end."""
        self.ledger.facts += 1
        self._check_close(tp, start, end, batches)
        self._check_openings(tp, batches)
        self._check_named_order(tp, start, batches)
        self._check_positions(tp, batches)
        found = {batch.base + at: (batch.epoch, value) for batch in batches for at, value in enumerate(batch.values)}
        for offset, (epoch, value) in sorted(self._names[tp].items()):
            if offset < start:
                continue
            if offset not in found:
                self.fail("PositionLasts", f"{tp} offset {offset}: acknowledged {value!r}, found nothing")
            if found[offset][1] != value or epoch not in (NO_EPOCH, found[offset][0]):
                self.fail(
                    "PositionLasts", f"{tp} offset {offset}: acknowledged {(epoch, value)}, found {found[offset]}"
                )
        values = {value for _, value in found.values()}
        for value, sequence in self._missing[tp].items():
            if start == 0 and value not in values:
                self.fail("NamedOnce", f"{tp}: {value!r} of sequence {sequence} was acknowledged, and is not there")

    def _check_close(self, tp: TopicPartition, start: int, end: int, batches: Sequence[StreamBatch]) -> None:
        acknowledged = self._closed.get(tp)
        if acknowledged is not None and end != acknowledged:
            self.fail("NothingBehindAClose", f"{tp} ends at {end}, was closed with the end {acknowledged}")
        closes = [batch.base for batch in batches if batch.closes]
        if tp in self._heard_closed and not closes:
            self.fail("NothingBehindAClose", f"{tp} is open, and was closed for {self._heard_closed[tp]}")
        if closes and end != closes[0] + 1:
            self.fail("NothingBehindAClose", f"{tp} is closed at {closes[0]}, and ends at {end}")
        if acknowledged is not None and start < acknowledged and not closes:
            self.fail("NothingBehindAClose", f"{tp}: the record of its close at {acknowledged - 1} is gone")

    def _check_openings(self, tp: TopicPartition, batches: Sequence[StreamBatch]) -> None:
        writer: int | None = None
        for batch in batches:
            if batch.opens is not None:
                writer = batch.opens
            elif batch.values and writer is not None and batch.producer.id != writer:
                detail = f"{tp} offset {batch.base}: {batch.values} of producer {batch.producer.id}"
                self.fail("FencedUnacknowledged", f"{detail} lies where the stream is open for {writer}")

    def _check_positions(self, tp: TopicPartition, batches: Sequence[StreamBatch]) -> None:
        seen: dict[bytes, int] = {}
        before = NO_EPOCH
        for batch in batches:
            epoch, before = before, batch.epoch
            for value in batch.values[:1]:
                if value in self._refused[tp] and value not in self._maybe:
                    self.fail(
                        "OneAtAPosition",
                        f"{tp}: {value!r} at {batch.base} was refused: {self._refused[tp][value].name}",
                    )
                expected = self._expected[tp].get(value)
                if expected is None:
                    continue
                if expected[0] != batch.base or value in seen:
                    where = f"at {batch.base}, and at {seen[value]}" if value in seen else f"at {batch.base}"
                    self.fail("OneAtAPosition", f"{tp}: {value!r} was to be at {expected[0]}, and is {where}")
                if NO_EPOCH not in (expected[1], epoch) and epoch != expected[1]:
                    behind = f"{tp}: {value!r} was to follow a record of epoch {expected[1]}"
                    self.fail("OneAtAPosition", f"{behind}, and follows one of {epoch}")
                seen[value] = batch.base

    def _check_named_order(self, tp: TopicPartition, start: int, batches: Sequence[StreamBatch]) -> None:
        last: dict[int, tuple[int, int]] = {}
        for batch in batches:
            if not batch.values or not is_named(batch.producer.id):
                continue
            place = batch.producer.epoch, batch.sequence
            before = last.get(batch.producer.id)
            follows = place[1] == 0 if before is None or before[0] < place[0] else place == (before[0], before[1] + 1)
            is_first = before is None and start > 0
            if not follows and not is_first:
                self.fail("NamedOnce", f"{tp} offset {batch.base}: epoch and sequence {place} follow {before}")
            last[batch.producer.id] = place
