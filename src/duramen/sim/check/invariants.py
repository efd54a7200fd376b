"""The promises a simulation checks, each a class with a name, and the ledger of what clients were told and saw.

Every check happens at the moment a client learns something, so the history ends where the promise was broken. Replies
travel: an answer is held against what was known when its question was sent (`asked`, a fact's number), not against what
others learned meanwhile. A `stable` topic must keep what it acknowledged or showed to a reader; a page-cache topic must
do so until power fails. Then it may lose a tail, but must never give the same offset twice within one leader epoch.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from duramen.model import TopicPartition


class InvariantViolated(Exception):  # noqa: N818 - it is a finding
    """`invariant` does not hold; `detail` says where, `lines` how it came to that (if they were kept)."""

    def __init__(self, invariant: str, detail: str) -> None:
        super().__init__(f"{invariant}: {detail}")
        self.invariant = invariant
        self.detail = detail
        self.lines: list[str] = []


class Retention(NamedTuple):
    """A topic's `retention.ms` and `retention.bytes`; -1: no limit."""

    ms: int = -1
    bytes: int = -1


class Keyed(NamedTuple):
    """What a producer sends to a compacted topic under a number of its own; value None: a tombstone."""

    number: bytes
    key: bytes
    value: bytes | None


class Tombstone(NamedTuple):
    """When (`Ledger.passed_ms`) it was sent first, and its offset once that is known."""

    sent_ms: int
    offset: int | None = None


class KeyedRecord(NamedTuple):
    """A record of a compacted topic; value None: a tombstone."""

    offset: int
    key: bytes
    value: bytes | None


class HighestKnown:
    """The greatest number known after each fact: it answers what was known at an earlier one."""

    def __init__(self) -> None:
        self._facts: list[int] = []
        self._values: list[int] = []

    def learn(self, fact: int, value: int) -> None:
        """From this fact on, `value` is known."""
        if not self._values or value > self._values[-1]:
            self._facts.append(fact)
            self._values.append(value)

    def at(self, fact: int) -> int:
        """The greatest value known by then; -1 when none was."""
        place = bisect_right(self._facts, fact)
        return self._values[place - 1] if place else -1


class Invariant:
    """A promise. Subclasses are told what clients learn and call `fail` when it breaks the promise."""

    promise = ""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._stable = ledger.stable

    def fail(self, detail: str) -> None:
        """The promise is broken."""
        raise InvariantViolated(type(self).__name__, detail)

    def produced(self, tp: TopicPartition, values: Sequence[bytes], timestamp: int, size: int) -> None:
        """A producer is about to send these values as one batch of `size` bytes; timestamp in ms."""

    def acknowledged(self, tp: TopicPartition, offset: int, value: bytes, *, lasting: bool) -> None:
        """A producer was told that its record has this offset. lasting: until power fails, or for ever (`Ledger`)."""

    def read(self, tp: TopicPartition, offset: int, epoch: int, value: bytes, *, lasting: bool) -> None:
        """A reader was given this record, of a batch with this leader epoch."""

    def power_failed(self) -> None:
        """What page-cache topics hold may be gone."""

    def end_seen(self, tp: TopicPartition, end: int, asked: int) -> None:
        """Somebody was told that readers may read up to `end` (exclusive): a high watermark."""

    def start_seen(self, tp: TopicPartition, start: int, asked: int) -> None:
        """Somebody was told where the log starts."""

    def deletion_asked(self, tp: TopicPartition, before: int) -> None:
        """Somebody is about to ask for the records below `before` to be deleted."""

    def deleted(self, tp: TopicPartition, before: int) -> None:
        """A DeleteRecords up to `before` was acknowledged."""

    def committed(self, group: str, tp: TopicPartition, offset: int, asked: int) -> None:
        """A group's commit was acknowledged."""

    def position_fetched(self, group: str, tp: TopicPartition, offset: int, asked: int) -> None:
        """A group's member was told to go on at `offset` (-1: no commit known)."""

    def keyed_produced(self, tp: TopicPartition, sent: Keyed) -> None:
        """A producer is about to send this to a compacted topic."""

    def keyed_acknowledged(self, tp: TopicPartition, offset: int, sent: Keyed) -> None:
        """A producer was told that this record has this offset."""

    def folded(self, tp: TopicPartition, records: list[KeyedRecord], asked: int) -> None:
        """Everything that a reader, who began at fact `asked`, found in a compacted topic."""

    def truncated(self, tp: TopicPartition, end: int) -> None:
        """A power cut may have taken what a compacted page-cache topic held from `end` on."""

    def final(self, tp: TopicPartition, start: int, records: list[tuple[int, int, bytes]]) -> None:
        """After the last fault, this is everything in the partition: (offset, epoch, value) from its start on."""


class AcknowledgedNeverLost(Invariant):
    """Applies to all topics; to page-cache topics until power fails."""

    promise = "what a producer was told is stored can be read at that offset afterwards"

    def __init__(self, ledger: Ledger) -> None:
        super().__init__(ledger)
        self._known: defaultdict[TopicPartition, dict[int, bytes]] = defaultdict(dict)
        self._highest: defaultdict[TopicPartition, HighestKnown] = defaultdict(HighestKnown)

    def acknowledged(self, tp: TopicPartition, offset: int, value: bytes, *, lasting: bool) -> None:
        if lasting:
            self._known[tp][offset] = value
            self._highest[tp].learn(self._ledger.facts, offset)

    def power_failed(self) -> None:
        self._ledger.forget(self._known, self._highest)

    def end_seen(self, tp: TopicPartition, end: int, asked: int) -> None:
        highest = self._highest[tp].at(asked)
        if end <= highest:
            self.fail(f"{tp} ends at {end}, but offset {highest} was acknowledged")

    def final(self, tp: TopicPartition, start: int, records: list[tuple[int, int, bytes]]) -> None:
        found = {offset: value for offset, _, value in records}
        for offset, value in sorted(self._known[tp].items()):
            if offset >= start and found.get(offset) != value:
                self.fail(f"{tp} offset {offset}: acknowledged {value[:32]!r}, found {_short(found.get(offset))}")


class NothingReadVanishes(Invariant):
    """Applies to all topics; to page-cache topics until power fails."""

    promise = "what a reader was given is still there, at the same offset, for every later reader"

    def __init__(self, ledger: Ledger) -> None:
        super().__init__(ledger)
        self._seen: defaultdict[TopicPartition, dict[int, bytes]] = defaultdict(dict)
        self._highest: defaultdict[TopicPartition, HighestKnown] = defaultdict(HighestKnown)

    def read(self, tp: TopicPartition, offset: int, epoch: int, value: bytes, *, lasting: bool) -> None:
        if lasting:
            self._seen[tp].setdefault(offset, value)
            self._highest[tp].learn(self._ledger.facts, offset)

    def power_failed(self) -> None:
        self._ledger.forget(self._seen, self._highest)

    def end_seen(self, tp: TopicPartition, end: int, asked: int) -> None:
        highest = self._highest[tp].at(asked)
        if end <= highest:
            self.fail(f"{tp} ends at {end}, but offset {highest} was read before")

    def final(self, tp: TopicPartition, start: int, records: list[tuple[int, int, bytes]]) -> None:
        found = {offset: value for offset, _, value in records}
        for offset, value in sorted(self._seen[tp].items()):
            if offset >= start and found.get(offset) != value:
                self.fail(f"{tp} offset {offset}: read {value[:32]!r}, later {_short(found.get(offset))}")


class OffsetStability(Invariant):
    """Applies to all topics; to page-cache topics until power fails."""

    promise = "an offset names the same record for ever"

    def __init__(self, ledger: Ledger) -> None:
        super().__init__(ledger)
        self._names: defaultdict[TopicPartition, dict[int, bytes]] = defaultdict(dict)

    def acknowledged(self, tp: TopicPartition, offset: int, value: bytes, *, lasting: bool) -> None:
        if lasting and self._names[tp].setdefault(offset, value) != value:
            self.fail(f"{tp} offset {offset}: {_short(self._names[tp][offset])}, then {_short(value)}")

    def read(self, tp: TopicPartition, offset: int, epoch: int, value: bytes, *, lasting: bool) -> None:
        self.acknowledged(tp, offset, value, lasting=lasting)

    def power_failed(self) -> None:
        self._ledger.forget(self._names)


class NoOffsetReusedInAnEpoch(Invariant):
    """Applies to all topics; it is what lets readers of page-cache topics see that records were lost."""

    promise = "an offset is not given twice within one leader epoch"

    def __init__(self, ledger: Ledger) -> None:
        super().__init__(ledger)
        self._names: dict[tuple[TopicPartition, int, int], bytes] = {}

    def read(self, tp: TopicPartition, offset: int, epoch: int, value: bytes, *, lasting: bool) -> None:
        if self._names.setdefault((tp, epoch, offset), value) != value:
            first = _short(self._names[tp, epoch, offset])
            self.fail(f"{tp} offset {offset} of epoch {epoch}: {first}, then {_short(value)}")


class Order(Invariant):
    """Applies to all topics; values begin with `producer:number `."""

    promise = "a partition holds each producer's records in the order they were produced, without gaps in its offsets"

    def final(self, tp: TopicPartition, start: int, records: list[tuple[int, int, bytes]]) -> None:
        expected, last_epoch = start, -1
        seen: set[bytes] = set()
        last: dict[bytes, int] = {}
        for offset, epoch, value in records:
            if offset != expected:
                self.fail(f"{tp}: offset {offset} follows {expected - 1}")
            if epoch < last_epoch:
                self.fail(f"{tp}: epoch {epoch} at offset {offset} follows epoch {last_epoch}")
            expected, last_epoch = offset + 1, epoch
            producer, _, rest = value.rpartition(b":")
            if value in seen and (self._ledger.lasts(tp) or producer in self._ledger.plain):
                continue  # ExactlyOnce has that
            seen.add(value)
            number = int(rest.split(b" ", 1)[0])
            if number <= last.get(producer, -1):
                self.fail(f"{tp} offset {offset}: {_short(value)} follows number {last[producer]}")
            last[producer] = number


class ExactlyOnce(Invariant):
    """Applies to what idempotent producers sent; in page-cache topics where power never fails."""

    promise = "a record that its producer sent again is stored once"

    def final(self, tp: TopicPartition, start: int, records: list[tuple[int, int, bytes]]) -> None:
        first: dict[bytes, int] = {}
        for offset, _, value in records:
            if value.rpartition(b":")[0] in self._ledger.plain:
                continue
            if self._ledger.lasts(tp) and first.setdefault(value, offset) != offset:
                self.fail(f"{tp}: {_short(value)} is stored at {first[value]} and at {offset}")


class LogStartNeverGoesBack(Invariant):
    """Applies to stable topics. A start that was only seen may still go back: its deletion was not acknowledged yet."""

    promise = "records whose deletion was acknowledged do not come back"

    def __init__(self, ledger: Ledger) -> None:
        super().__init__(ledger)
        self._start: defaultdict[TopicPartition, HighestKnown] = defaultdict(HighestKnown)

    def start_seen(self, tp: TopicPartition, start: int, asked: int) -> None:
        if start < self._start[tp].at(asked):
            self.fail(f"{tp}: the log starts at {start}, it was deleted up to {self._start[tp].at(asked)}")

    def deleted(self, tp: TopicPartition, before: int) -> None:
        if tp.topic in self._stable:
            self._start[tp].learn(self._ledger.facts, before)


class TruncationExact(Invariant):
    """Applies to stable topics that nothing but DeleteRecords shortens."""

    promise = "a log begins exactly where a DeleteRecords asked it to, to the record"

    def __init__(self, ledger: Ledger) -> None:
        super().__init__(ledger)
        self._asked: defaultdict[TopicPartition, set[int]] = defaultdict(lambda: {0})

    def deletion_asked(self, tp: TopicPartition, before: int) -> None:
        self._asked[tp].add(before)

    def start_seen(self, tp: TopicPartition, start: int, asked: int) -> None:
        if tp.topic in self._stable and tp.topic not in self._ledger.retention and start not in self._asked[tp]:
            self.fail(f"{tp}: the log starts at {start}; asked for were {sorted(self._asked[tp])}")


class RetentionNeverEarly(Invariant):
    """Applies to topics with a limit in time or size. Time is the broker's wall clock at its latest so far."""

    promise = "retention removes a record only when its time is over or newer records fill the log"

    def __init__(self, ledger: Ledger) -> None:
        super().__init__(ledger)
        self._made: defaultdict[TopicPartition, dict[bytes, tuple[int, float]]] = defaultdict(dict)
        self._offsets: defaultdict[TopicPartition, dict[bytes, int]] = defaultdict(dict)
        self._start: defaultdict[TopicPartition, int] = defaultdict(int)

    def produced(self, tp: TopicPartition, values: Sequence[bytes], timestamp: int, size: int) -> None:
        if tp.topic in self._ledger.retention:
            for value in values:
                self._made[tp][value] = (timestamp, size / len(values))

    def acknowledged(self, tp: TopicPartition, offset: int, value: bytes, *, lasting: bool) -> None:
        if tp.topic in self._ledger.retention:
            self._offsets[tp][value] = max(offset, self._offsets[tp].get(value, -1))

    def read(self, tp: TopicPartition, offset: int, epoch: int, value: bytes, *, lasting: bool) -> None:
        self.acknowledged(tp, offset, value, lasting=lasting)

    def start_seen(self, tp: TopicPartition, start: int, asked: int) -> None:
        limits = self._ledger.retention.get(tp.topic)
        if limits is None or start <= self._start[tp]:
            return
        self._start[tp] = start
        offsets, made = self._offsets[tp], self._made[tp]
        now = self._ledger.broker_wall_ms()
        gone = [value for value, offset in offsets.items() if offset < start and value in made]
        young = [value for value in gone if made[value][0] + limits.ms > now] if limits.ms >= 0 else gone
        # What was never acknowledged or read may be in the log, too: it counts as if it were.
        left = sum(size for value, (_, size) in made.items() if offsets.get(value, start) >= start)
        if young and not 0 <= limits.bytes <= left + 1:
            self.fail(
                f"{tp}: the log starts at {start}, {len(young)} of the records before are younger than {limits.ms} ms "
                f"at {now}, and at most {left:.0f} of {limits.bytes} bytes are left"
            )


class OnlyWhatWasProduced(Invariant):
    """Applies to all topics, and whatever the disk does, a lying one included."""

    promise = "a reader is given only what some producer sent to that partition"

    def __init__(self, ledger: Ledger) -> None:
        super().__init__(ledger)
        self._made: defaultdict[TopicPartition, set[bytes]] = defaultdict(set)

    def produced(self, tp: TopicPartition, values: Sequence[bytes], timestamp: int, size: int) -> None:
        self._made[tp].update(values)

    def read(self, tp: TopicPartition, offset: int, epoch: int, value: bytes, *, lasting: bool) -> None:
        if value not in self._made[tp]:
            self.fail(f"{tp} offset {offset}: {_short(value)} was never sent there")


class CompactionKeepsTheLast(Invariant):
    """Applies to compacted topics."""

    promise = (
        "compaction removes only what a younger record of the same key replaces, and tombstones "
        "delete.retention.ms after they were sent at the earliest; it renumbers nothing"
    )

    def __init__(self, ledger: Ledger) -> None:
        super().__init__(ledger)
        self._sent: defaultdict[TopicPartition, set[tuple[bytes, bytes | None]]] = defaultdict(set)
        self._stored: defaultdict[TopicPartition, dict[int, KeyedRecord]] = defaultdict(dict)
        self._last: defaultdict[TopicPartition, dict[bytes, HighestKnown]] = defaultdict(dict)
        self._tombstones: defaultdict[tuple[TopicPartition, bytes], dict[bytes, Tombstone]] = defaultdict(dict)

    def keyed_produced(self, tp: TopicPartition, sent: Keyed) -> None:
        self._sent[tp].add((sent.key, sent.value))
        if sent.value is None:
            self._tombstones[tp, sent.key].setdefault(sent.number, Tombstone(self._ledger.passed_ms()))

    def keyed_acknowledged(self, tp: TopicPartition, offset: int, sent: Keyed) -> None:
        self._stored[tp][offset] = KeyedRecord(offset, sent.key, sent.value)
        self._last[tp].setdefault(sent.key, HighestKnown()).learn(self._ledger.facts, offset)
        if sent.value is None:
            tombstones = self._tombstones[tp, sent.key]
            tombstones[sent.number] = tombstones[sent.number]._replace(offset=offset)

    def folded(self, tp: TopicPartition, records: list[KeyedRecord], asked: int) -> None:
        last: dict[bytes, KeyedRecord] = {}
        previous = -1
        for record in records:
            if record.offset <= previous:
                self.fail(f"{tp}: offset {record.offset} follows {previous}")
            previous = record.offset
            known = self._stored[tp].setdefault(record.offset, record)
            if known != record or (record.key, record.value) not in self._sent[tp]:
                self.fail(f"{tp} offset {record.offset}: {_short(known.value)} became {_short(record.value)}")
            last[record.key] = record
        for key, highest in self._last[tp].items():
            offset = highest.at(asked)
            if offset < 0:
                continue
            wanted, found = self._stored[tp][offset], last.get(key)
            if found is None and self._may_be_gone(tp, wanted):
                continue
            if found is None or found.offset < offset:
                place = "nothing" if found is None else f"offset {found.offset}"
                self.fail(f"{tp} {key!r}: the last is {_short(wanted.value)} at {offset}, there is {place}")

    def truncated(self, tp: TopicPartition, end: int) -> None:
        self._stored[tp] = {offset: record for offset, record in self._stored[tp].items() if offset < end}
        self._last[tp].clear()
        for offset, record in sorted(self._stored[tp].items()):
            self._last[tp].setdefault(record.key, HighestKnown()).learn(self._ledger.facts, offset)

    def _may_be_gone(self, tp: TopicPartition, wanted: KeyedRecord) -> bool:
        """Whether a key may be missing altogether: its last record is a tombstone, or one may have followed, and its
        time is over.
        """
        latest = self._ledger.passed_ms() - self._ledger.tombstones_stay_ms.get(tp.topic, 0)
        return any(
            tombstone.sent_ms <= latest and (tombstone.offset is None or tombstone.offset >= wanted.offset)
            for tombstone in self._tombstones[tp, wanted.key].values()
        )


class GroupOffsetsMonotone(Invariant):
    """Members commit only what they processed after the last commit, so a group's positions only grow."""

    promise = "a committed position is never lost and never goes back"

    def __init__(self, ledger: Ledger) -> None:
        super().__init__(ledger)
        self._highest: defaultdict[tuple[str, TopicPartition], HighestKnown] = defaultdict(HighestKnown)

    def committed(self, group: str, tp: TopicPartition, offset: int, asked: int) -> None:
        highest = self._highest[group, tp]
        if offset < highest.at(asked):
            self.fail(f"{group} {tp}: a commit of {offset} was accepted after {highest.at(asked)}")
        highest.learn(self._ledger.facts, offset)

    def position_fetched(self, group: str, tp: TopicPartition, offset: int, asked: int) -> None:
        highest = self._highest[group, tp].at(asked)
        if offset < highest:
            self.fail(f"{group} {tp}: the position is {offset}, but {highest} was committed")


class Ledger:
    """Tells every invariant what clients learn. `facts` counts what was learned so far.

    stable: names of the topics that promise stable storage. retention: limits of the topics that have some.
    tombstones_stay_ms: `delete.retention.ms` of topics that are compacted.
    broker_wall_ms: the latest time that the broker's wall clock has shown. passed_ms: what it has gone ahead so far,
    jumps included; that it was set back is not counted.
    """

    def __init__(self, stable: set[str], retention: dict[str, Retention] | None = None) -> None:
        self.stable = stable
        self.retention = retention or {}
        self.tombstones_stay_ms: dict[str, int] = {}
        self.broker_wall_ms: Callable[[], int] = lambda: 0
        self.passed_ms: Callable[[], int] = lambda: 0
        self.facts = 0
        self.plain: set[bytes] = set()
        """Names of producers that are not idempotent."""
        self.behind: set[str] = set()
        """Topics of several copies: a client may be told an end that is older than what it knows."""
        self._power_failed = 0
        self.invariants: list[Invariant] = [kind(self) for kind in INVARIANTS]

    def keep_only(self, *kinds: type[Invariant]) -> None:
        """From now on only these promises are asked for."""
        self.invariants = [invariant for invariant in self.invariants if isinstance(invariant, kinds)]

    def produced(self, tp: TopicPartition, values: Sequence[bytes], timestamp: int, size: int) -> None:
        """See Invariant."""
        for invariant in self.invariants:
            invariant.produced(tp, values, timestamp, size)

    def deletion_asked(self, tp: TopicPartition, before: int) -> None:
        """See Invariant."""
        for invariant in self.invariants:
            invariant.deletion_asked(tp, before)

    def acknowledged(self, tp: TopicPartition, offset: int, value: bytes, asked: int) -> None:
        """See Invariant; asked: the fact at which the record was sent."""
        self.facts += 1
        lasting = self.lasts(tp, asked)
        for invariant in self.invariants:
            invariant.acknowledged(tp, offset, value, lasting=lasting)

    def read(self, tp: TopicPartition, offset: int, epoch: int, value: bytes, asked: int) -> None:
        """See Invariant."""
        self.facts += 1
        lasting = self.lasts(tp, asked)
        for invariant in self.invariants:
            invariant.read(tp, offset, epoch, value, lasting=lasting)

    def power_failed(self) -> None:
        """See Invariant; a fact of its own."""
        self.facts += 1
        self._power_failed = self.facts
        for invariant in self.invariants:
            invariant.power_failed()

    def lasts(self, tp: TopicPartition, asked: int = 0) -> bool:
        """Whether what is learned of the partition by a question of then, asked at the fact `asked`, must still be so.

        Of a page-cache topic until power fails: a kill alone leaves the page cache.
        """
        return tp.topic in self.stable or asked >= self._power_failed

    def forget(self, *known: dict[TopicPartition, Any]) -> None:
        """Drop what was known of page-cache topics."""
        for facts in known:
            for tp in [tp for tp in facts if tp.topic not in self.stable]:
                del facts[tp]

    def end_seen(self, tp: TopicPartition, end: int, asked: int) -> None:
        """See Invariant. A deposed leader, or a new one, does not know yet how far others had got."""
        if tp.topic in self.behind:
            return
        for invariant in self.invariants:
            invariant.end_seen(tp, end, asked)

    def start_seen(self, tp: TopicPartition, start: int, asked: int) -> None:
        """See Invariant."""
        for invariant in self.invariants:
            invariant.start_seen(tp, start, asked)

    def deleted(self, tp: TopicPartition, before: int) -> None:
        """See Invariant."""
        self.facts += 1
        for invariant in self.invariants:
            invariant.deleted(tp, before)

    def committed(self, group: str, tp: TopicPartition, offset: int, asked: int) -> None:
        """See Invariant."""
        self.facts += 1
        for invariant in self.invariants:
            invariant.committed(group, tp, offset, asked)

    def position_fetched(self, group: str, tp: TopicPartition, offset: int, asked: int) -> None:
        """See Invariant."""
        for invariant in self.invariants:
            invariant.position_fetched(group, tp, offset, asked)

    def keyed_produced(self, tp: TopicPartition, sent: Keyed) -> None:
        """See Invariant."""
        for invariant in self.invariants:
            invariant.keyed_produced(tp, sent)

    def keyed_acknowledged(self, tp: TopicPartition, offset: int, sent: Keyed) -> None:
        """See Invariant."""
        self.facts += 1
        for invariant in self.invariants:
            invariant.keyed_acknowledged(tp, offset, sent)

    def folded(self, tp: TopicPartition, records: list[KeyedRecord], asked: int) -> None:
        """See Invariant."""
        self.facts += len(records)
        for invariant in self.invariants:
            invariant.folded(tp, records, asked)

    def truncated(self, tp: TopicPartition, end: int) -> None:
        """See Invariant."""
        for invariant in self.invariants:
            invariant.truncated(tp, end)

    def final(self, tp: TopicPartition, start: int, records: list[tuple[int, int, bytes]]) -> None:
        """See Invariant."""
        for invariant in self.invariants:
            invariant.final(tp, start, records)


INVARIANTS: tuple[type[Invariant], ...] = (
    OnlyWhatWasProduced,
    OffsetStability,
    AcknowledgedNeverLost,
    NothingReadVanishes,
    NoOffsetReusedInAnEpoch,
    Order,
    ExactlyOnce,
    LogStartNeverGoesBack,
    TruncationExact,
    RetentionNeverEarly,
    CompactionKeepsTheLast,
    GroupOffsetsMonotone,
)
"""Every invariant, in the order in which they are asked."""


def _short(value: bytes | None) -> str:
    return "nothing" if value is None else repr(value[:32])
