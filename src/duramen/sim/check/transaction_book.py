"""What is known of every transaction of a simulated world, and the promises that hold for them.

Every record's value names its transaction. The book hears what transactional clients ask and are told, and what readers
of committed data are given, at the moment they learn it; at the end it gets the whole logs, batch by batch, as readers
of everything see them, and holds the two against each other. What was learned is held against what was known when the
question was sent (`asked`, a number of a fact of the ledger), as everywhere.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from duramen.machines.contract import ProducerEpoch
from duramen.model import TopicPartition
from duramen.sim.check.coverage import Coverage
from duramen.sim.check.invariants import HighestKnown, InvariantViolated, Ledger

TRANSACTION_INVARIANTS: Final = {
    "Atomic": "of a transaction, readers of committed data see all or nothing, over all its partitions and offsets",
    "AbortedUnseen": "nobody who reads committed data is ever given a record of an aborted transaction, or its offsets",
    "NoLateMarker": "nothing of a transaction, batch, marker or EndTxn, lands in a later one",
    "FencedAnsweredOnce": "once InitProducerId has answered, nothing of an older life is acknowledged or becomes "
    "visible; what is repeated has no second effect",
    "StableAdvances": "the last stable offset never steps back nor lies below the log start, and no transaction hangs",
}
"""What is checked, by name."""

GroupPartition = tuple[str, TopicPartition]


class KnownTransaction:
    """One attempt of one client, from its first record to its end."""

    __slots__ = (
        "abort_asked",
        "commit_asked",
        "generation",
        "name",
        "offsets",
        "producer",
        "seen",
        "values",
        "verdict",
    )

    def __init__(self, name: str, generation: int, producer: ProducerEpoch) -> None:
        self.name = name
        self.generation = generation
        self.producer = producer
        self.values: dict[TopicPartition, list[bytes]] = {}
        self.offsets: dict[GroupPartition, int] = {}
        self.commit_asked = False
        self.abort_asked = False
        self.verdict: bool | None = None
        """Whether it was committed, once a client knows."""
        self.seen: set[TopicPartition] = set()
        """Where a reader of committed data was given a record of it."""


class LogBatch(NamedTuple):
    """A batch as a reader of everything sees it. marker: None for data; else whether it commits."""

    offset: int
    producer: ProducerEpoch
    values: list[bytes]
    marker: bool | None


class Life:
    """Of a transactional id: what is known of the newest epochs that InitProducerId has answered."""

    __slots__ = ("fence", "transactions")

    def __init__(self) -> None:
        self.fence = HighestKnown()
        self.transactions: list[KnownTransaction] = []


def rank(producer: ProducerEpoch) -> int:
    """Orders the epochs of one transactional id; a new id follows only when the epochs of the last are used up."""
    return producer.id << 16 | producer.epoch


class TransactionBook:
    """Of one world. excused: topics that are deleted or cut meanwhile: what is there of a transaction says nothing.

    compacted: topics that keep the last of each key. ledger: knows which topics last.
    """

    def __init__(self, ledger: Ledger, coverage: Coverage) -> None:
        self.ledger = ledger
        self.coverage = coverage
        self.excused: set[str] = set()
        self.compacted: set[str] = set()
        self._lives: defaultdict[str, Life] = defaultdict(Life)
        self._by_value: dict[bytes, KnownTransaction] = {}
        self._stable_offsets: defaultdict[TopicPartition, HighestKnown] = defaultdict(HighestKnown)
        self._committed: defaultdict[GroupPartition, HighestKnown] = defaultdict(HighestKnown)
        self._offered: defaultdict[tuple[GroupPartition, int], list[KnownTransaction]] = defaultdict(list)
        """Who has sent a position: a life that wakes late may send the same as its successor."""
        self._ends: defaultdict[str, dict[TopicPartition, bool]] = defaultdict(dict)
        self._found: dict[TopicPartition, list[bytes]] = {}
        self._stored: defaultdict[TopicPartition, dict[bytes, tuple[bytes, int]]] = defaultdict(dict)
        """Of compacted topics: key and offset of each value that was acknowledged."""

    # ---- what clients do and are told --------------------------------------------------------------------------

    def began_life(self, transactional_id: str, producer: ProducerEpoch) -> None:
        """InitProducerId has answered: whatever went before and did not ask for its commit never comes to be."""
        self.ledger.facts += 1
        life = self._lives[transactional_id]
        life.fence.learn(self.ledger.facts, rank(producer))
        for transaction in life.transactions:
            if rank(transaction.producer) < rank(producer) and not transaction.commit_asked:
                self._decide(transaction, committed=False)

    def began(self, transactional_id: str, name: str, generation: int, producer: ProducerEpoch) -> KnownTransaction:
        """A client begins a transaction."""
        transaction = KnownTransaction(name, generation, producer)
        self._lives[transactional_id].transactions.append(transaction)
        return transaction

    def sent(self, transaction: KnownTransaction, tp: TopicPartition, values: Sequence[bytes]) -> None:
        """These values are about to be sent as one batch of it."""
        transaction.values.setdefault(tp, []).extend(values)
        for value in values:
            self._by_value[value] = transaction

    def stored(self, tp: TopicPartition, offset: int, values: Sequence[bytes], keys: Sequence[bytes]) -> None:
        """These values were acknowledged, from this offset on."""
        if tp.topic in self.compacted:
            for place, (value, key) in enumerate(zip(values, keys, strict=True)):
                self._stored[tp][value] = key, offset + place

    def offsets_sent(self, transaction: KnownTransaction, group: str, tp: TopicPartition, offset: int) -> None:
        """This position is about to be sent as a part of it."""
        transaction.offsets[group, tp] = offset
        self._offered[(group, tp), offset].append(transaction)

    def accepted(self, transactional_id: str, producer: ProducerEpoch, what: str, asked: int) -> None:
        """A request that names this epoch, sent at fact `asked`, was answered without an error."""
        self.ledger.facts += 1
        fence = self._lives[transactional_id].fence.at(asked)
        if rank(producer) < fence:
            raise InvariantViolated(
                "FencedAnsweredOnce",
                f"{transactional_id}: {what} of {producer} was taken, when {fence >> 16}/{fence & 0xFFFF} had begun",
            )

    def told(self, transaction: KnownTransaction, *, committed: bool) -> None:
        """EndTxn has answered without an error."""
        self.ledger.facts += 1
        self._decide(transaction, committed=committed)

    def _decide(self, transaction: KnownTransaction, *, committed: bool) -> None:
        if transaction.verdict is not None and transaction.verdict != committed:
            raise InvariantViolated(
                "FencedAnsweredOnce", f"{transaction.name} was {_said(transaction.verdict)}, then {_said(committed)}"
            )
        if not committed and transaction.seen:
            tp = sorted(transaction.seen)[0]
            raise InvariantViolated("AbortedUnseen", f"{transaction.name} was seen in {tp}, and is aborted")
        transaction.verdict = committed
        if committed:
            for place, offset in transaction.offsets.items():
                self._committed[place].learn(self.ledger.facts, offset)

    # ---- what readers are given --------------------------------------------------------------------------------

    def seen(self, tp: TopicPartition, offset: int, value: bytes) -> KnownTransaction:
        """A reader of committed data was given this value."""
        self.ledger.facts += 1
        transaction = self._by_value.get(value)
        if transaction is None:
            raise InvariantViolated("AbortedUnseen", f"{tp} offset {offset}: {value[:40]!r} was never sent")
        if transaction.verdict is False or not transaction.commit_asked:
            raise InvariantViolated("AbortedUnseen", f"{tp} offset {offset}: {value[:40]!r} was not committed")
        transaction.seen.add(tp)
        return transaction

    def stable_seen(self, tp: TopicPartition, start: int, stable: int, end: int, asked: int) -> None:
        """A reader was told log start, last stable offset and high watermark."""
        if not start <= stable <= end:
            raise InvariantViolated("StableAdvances", f"{tp}: stable up to {stable} in {start}..{end}")
        if tp.topic in self.ledger.behind or not self.ledger.lasts(tp, asked):
            return
        known = self._stable_offsets[tp].at(asked)
        if stable < known:
            raise InvariantViolated("StableAdvances", f"{tp}: stable up to {stable}, and was up to {known}")
        self.ledger.facts += 1
        self._stable_offsets[tp].learn(self.ledger.facts, stable)

    def power_failed(self) -> None:
        """What page-cache topics hold may be gone."""
        self.ledger.forget(self._stable_offsets)

    def position_fetched(self, group: str, tp: TopicPartition, offset: int, asked: int) -> None:
        """A group's position was told, -1: there is none."""
        self.ledger.facts += 1
        known = self._committed[group, tp].at(asked)
        if offset < known:
            raise InvariantViolated("Atomic", f"{group} {tp}: the position is {offset}, {known} was committed")
        if offset < 0:
            return
        offered = self._offered[(group, tp), offset]
        if not any(each.commit_asked and each.verdict is not False for each in offered):
            name = ", ".join(each.name for each in offered) or "nobody"
            raise InvariantViolated("AbortedUnseen", f"{group} {tp}: the position is {offset}, of {name}")

    # ---- the logs, at the end ----------------------------------------------------------------------------------

    def log_read(self, tp: TopicPartition, batches: Iterable[LogBatch], committed: list[bytes]) -> None:
        """Everything that is in a partition, and everything that a reader of committed data is given there."""
        reading = LogReading(self, tp)
        for batch in batches:
            reading.take(batch)
        for transaction in reading.open.values():
            raise InvariantViolated("StableAdvances", f"{tp}: {transaction.name} is still open")
        expected = reading.committed
        if tp.topic in self.compacted:  # the cleaner may have gone over it between the two readings
            self._check_compacted(tp, committed)
        elif expected != committed:
            extra = set(committed) - set(expected)
            name = "AbortedUnseen" if extra else "Atomic"
            raise InvariantViolated(
                name, f"{tp}: readers are given {len(committed)} records, {len(expected)} are committed"
            )
        self._found[tp] = expected

    def _check_compacted(self, tp: TopicPartition, committed: list[bytes]) -> None:
        """What is committed last of each key is there, or what came after it; and nothing that was aborted."""
        for value in committed:
            self.seen(tp, -1, value)
        stored = self._stored[tp]
        last: dict[bytes, int] = {}
        for value in committed:
            if value in stored:
                key, offset = stored[value]
                last[key] = max(offset, last.get(key, -1))
        for value, (key, offset) in stored.items():
            if self._by_value[value].verdict and last.get(key, -1) < offset and self.ledger.lasts(tp):
                raise InvariantViolated(
                    "AbortedUnseen",
                    f"{tp}: {value[:40]!r} is the last of {key!r} at {offset}; {last.get(key)} is there",
                )

    def ended(self, tp: TopicPartition, transaction: KnownTransaction, *, committed: bool) -> None:
        """A marker for it is in this partition's log."""
        if committed and not transaction.commit_asked:
            raise InvariantViolated(
                "NoLateMarker", f"{tp}: {transaction.name} never asked for the commit that is there"
            )
        if transaction.verdict is not None and transaction.verdict != committed:
            raise InvariantViolated(
                "Atomic", f"{tp}: {transaction.name} was {_said(transaction.verdict)}, and is {_said(committed)} here"
            )
        ends = self._ends[transaction.name]
        ends[tp] = committed
        if len(set(ends.values())) > 1:
            raise InvariantViolated("Atomic", f"{transaction.name} ended in two ways: {ends}")
        if not committed and transaction.commit_asked:
            self.coverage.hit("transaction aborted although its commit was asked for")
        elif not committed and not transaction.abort_asked:
            self.coverage.hit("transaction aborted by its coordinator")

    def found(self, tp: TopicPartition) -> list[bytes]:
        """What is committed there, at the end."""
        return self._found.get(tp, [])

    def conclude(self) -> None:
        """All logs were read: a transaction of which anything is visible is there as a whole."""
        visible: defaultdict[str, defaultdict[TopicPartition, list[bytes]]] = defaultdict(lambda: defaultdict(list))
        for tp, values in self._found.items():
            for value in values:
                visible[self._by_value[value].name][tp].append(value)
        for life in self._lives.values():
            for transaction in life.transactions:
                self._conclude(transaction, visible[transaction.name])

    def _conclude(self, transaction: KnownTransaction, found: dict[TopicPartition, list[bytes]]) -> None:
        self.ledger.facts += 1
        if not (transaction.verdict or transaction.seen or any(found.values())):
            return
        for tp, values in sorted(transaction.values.items()):
            is_excused = tp.topic in self.excused or tp.topic in self.compacted
            if is_excused or tp not in self._found or not self.ledger.lasts(tp):
                continue
            if found[tp] != values:
                where = sorted(transaction.seen) or ("its producer knows" if transaction.verdict else sorted(found))
                raise InvariantViolated(
                    "Atomic",
                    f"{transaction.name} is committed ({where}), and {tp} has {len(found[tp])} of its {len(values)}",
                )


class LogReading:
    """Goes through one partition's log in order, and says of each transaction how it ended there."""

    def __init__(self, book: TransactionBook, tp: TopicPartition) -> None:
        self.book = book
        self.tp = tp
        self.open: dict[int, KnownTransaction] = {}
        """By producer id."""
        self._ended: dict[str, bool] = {}
        self._last: dict[int, int] = {}
        self._values: dict[bytes, KnownTransaction] = {}

    @property
    def committed(self) -> list[bytes]:
        """The values of committed transactions, in the log's order."""
        return [value for value, transaction in self._values.items() if self._ended.get(transaction.name)]

    def take(self, batch: LogBatch) -> None:
        """The next batch."""
        producer = batch.producer
        if producer.epoch < self._last.get(producer.id, -1):
            raise InvariantViolated("FencedAnsweredOnce", f"{self._at(batch)}: epoch {producer.epoch} follows a later")
        self._last[producer.id] = producer.epoch
        if batch.marker is None:
            self._take_data(batch)
        else:
            self._take_marker(batch, committed=batch.marker)

    def _at(self, batch: LogBatch) -> str:
        return f"{self.tp} offset {batch.offset}"

    def _take_data(self, batch: LogBatch) -> None:
        for value in batch.values:
            transaction = self.book._by_value.get(value)
            if transaction is None:
                raise InvariantViolated("AbortedUnseen", f"{self._at(batch)}: {value[:40]!r} was never sent")
            if transaction.producer != batch.producer:
                raise InvariantViolated("NoLateMarker", f"{self._at(batch)}: {transaction.name} in {batch.producer}")
            other = self.open.setdefault(batch.producer.id, transaction)
            if other is not transaction:
                raise InvariantViolated("NoLateMarker", f"{self._at(batch)}: {transaction.name} within {other.name}")
            if transaction.name in self._ended:
                raise InvariantViolated("NoLateMarker", f"{self._at(batch)}: {transaction.name} behind its own end")
            if value in self._values and self.book.ledger.lasts(self.tp):
                raise InvariantViolated("ExactlyOnce", f"{self._at(batch)}: {value[:40]!r} is there twice")
            self._values[value] = transaction

    def _take_marker(self, batch: LogBatch, *, committed: bool) -> None:
        transaction = self.open.pop(batch.producer.id, None)
        if transaction is None:
            return  # of a transaction that had nothing here, or that was told once more
        if transaction.generation > 1 and batch.producer == transaction.producer:
            raise InvariantViolated("NoLateMarker", f"{self._at(batch)}: the epoch of {transaction.name} is not over")
        self._ended[transaction.name] = committed
        self.book.ended(self.tp, transaction, committed=committed)


def _said(committed: bool) -> str:
    return "committed" if committed else "aborted"
