"""What clients did in transactional list-append, and what lay in the log at the end; the anomalies in it. Pure.

A key is a partition, and the list in it what readers of committed data see. A transaction appends to several keys,
reads several, and may move a group's positions. `find` says what cannot have happened in a log that keeps its word:
after Adya (G0, G1a, G1b, G1c) as far as Kafka's transactions promise it, and what a log promises beyond: offsets,
order, nothing lost, nothing twice, nothing of a fenced producer.

Kafka isolates no writers from each other: two open transactions may append to the same two partitions in opposite
orders. So G0, and G1c by way of what overwrote what, are asked for where the clients kept each other off a key until
its transaction had ended (`alone`); what a reader saw is asked for always.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import Enum
from itertools import pairwise
from typing import NamedTuple

END = "the end"
Records = tuple[tuple[int, int], ...]
"""(offset, value) of each record, by offset."""


class Outcome(Enum):
    """What the client was told; UNKNOWN: it asked for the commit and heard no answer."""

    COMMITTED = "committed"
    ABORTED = "aborted"
    UNKNOWN = "unknown"


class Append(NamedTuple):
    """A value, which no other append has. offset: as acknowledged, or -1. sent: when, in nanoseconds."""

    key: str
    value: int
    offset: int = -1
    sent: int = 0


class Read(NamedTuple):
    """All that readers of committed data were given of a key from a position to its stable end. Times as a
    transaction's."""

    key: str
    start: int
    end: int
    records: Records
    asked: int = 0
    answered: int = 0


class Moved(NamedTuple):
    """A group's position in a key, as part of the transaction."""

    key: str
    offset: int


class Found(NamedTuple):
    """The position that a group had in a key (-1: none), asked for when nothing was open. Times as a transaction's: a
    client can sleep between the answer and its first transaction, and its next life goes on meanwhile."""

    key: str
    offset: int
    asked: int
    answered: int


Operation = Append | Read | Moved | Found


class Transaction(NamedTuple):
    """One, as its client saw it; times in nanoseconds of one clock. asked: for its end."""

    name: str
    producer: str
    life: int
    began: int
    asked: int
    ended: int
    outcome: Outcome
    operations: tuple[Operation, ...]

    def appends(self) -> Iterator[Append]:
        return (each for each in self.operations if isinstance(each, Append))

    def reads(self) -> Iterator[Read]:
        return (each for each in self.operations if isinstance(each, Read))


class Life(NamedTuple):
    """When InitProducerId was asked for, and answered. One that was asked for after another's answer is newer."""

    asked: int
    answered: int


class History(NamedTuple):
    """All of a run. lives: of each producer, by number. committed, written: what was read at the end, of committed
    data and of everything. positions: the group's at the end."""

    transactions: Sequence[Transaction]
    committed: Mapping[str, Records]
    written: Mapping[str, Records]
    lives: Mapping[tuple[str, int], Life] = {}
    positions: Mapping[str, int] = {}


class Anomaly(NamedTuple):
    """kind: one of KINDS."""

    kind: str
    said: str


KINDS = {
    "G0": "transactions that appended to two keys in opposite orders, though each had the keys for itself",
    "G1a": "an aborted value was seen",
    "G1b": "a reader saw the beginning of a transaction's appends to a key",
    "G1c": "transactions each of which saw, or followed, what the others had committed",
    "lost": "a committed value is gone",
    "doubled": "a value lies in the log twice",
    "misplaced": "a value lies in another key than it was appended to",
    "made up": "nobody appended this value",
    "torn": "of one transaction some values are committed and others are not",
    "wrong offset": "a value lies at another offset than was acknowledged or read",
    "skipped": "a reader was not given a committed value below its position",
    "vanished": "a reader was given a value that is not committed in the end",
    "out of order": "one producer's values are not in the order in which it appended them",
    "late": "a value landed behind those of a transaction that began after its own had ended",
    "zombie": "a producer that had been fenced went on",
    "stepped back": "a reader's stable end was lower than one that was answered before it asked",
    "aborted position": "a group had a position that only a transaction which did not commit gave it",
    "wrong position": "a group's position is not the last committed one",
}


def find(history: History, *, alone: bool, steady: bool) -> list[Anomaly]:
    """Every anomaly. alone: a key is one transaction's from its first append to its end. steady: no leader changed."""
    return list(_Search(history, alone=alone, steady=steady).run())


class _Search:
    """The indexes that the questions share."""

    def __init__(self, history: History, *, alone: bool, steady: bool) -> None:
        self.history = history
        self.alone = alone
        self.steady = steady
        self.writer: dict[int, Transaction] = {}
        self.home: dict[int, str] = {}
        for transaction in history.transactions:
            for append in transaction.appends():
                self.writer[append.value] = transaction
                self.home[append.value] = append.key
        self.place = {value: (key, at) for key, records in history.committed.items() for at, value in records}
        self.lies = {value: (key, at) for key, records in history.written.items() for at, value in records}
        self.committed = {each.name for each in history.transactions if self._is_committed(each)}

    def run(self) -> Iterator[Anomaly]:
        yield from self._log()
        for transaction in self.history.transactions:
            yield from self._values(transaction)
            for read in transaction.reads():
                yield from self._read(transaction, read)
        yield from self._order()
        yield from self._late()
        yield from self._zombies()
        yield from self._cycles()
        yield from self._positions()
        if self.steady:
            yield from self._steps()

    def _is_committed(self, transaction: Transaction) -> bool:
        """Of one whose client heard no answer the log decides."""
        if transaction.outcome is not Outcome.UNKNOWN:
            return transaction.outcome is Outcome.COMMITTED
        return any(append.value in self.place for append in transaction.appends())

    def _is_open(self, transaction: Transaction) -> bool:
        """Whether neither its client nor the log tells what became of it."""
        return transaction.outcome is Outcome.UNKNOWN and not any(transaction.appends())

    # -- values

    def _log(self) -> Iterator[Anomaly]:
        """What lies in the log at the end, whoever wrote it."""
        for what, keys in (("written", self.history.written), ("committed", self.history.committed)):
            times = Counter(value for records in keys.values() for _, value in records)
            for key, records in keys.items():
                for at, value in records:
                    where = f"{value} in {key} at {at} ({what})"
                    if value not in self.writer:
                        yield Anomaly("made up", where)
                        continue
                    if times[value] > 1:
                        yield Anomaly("doubled", f"{where}, {times[value]} times")
                    elif key != self.home[value]:
                        yield Anomaly("misplaced", f"{where}, appended to {self.home[value]}")
                    if what == "committed" and self.writer[value].outcome is Outcome.ABORTED:
                        yield Anomaly("G1a", f"{where}: {self.writer[value].name} was aborted")

    def _values(self, transaction: Transaction) -> Iterator[Anomaly]:
        """What became of one transaction's values."""
        appends = list(transaction.appends())
        gone = [append for append in appends if append.value not in self.place]
        if transaction.outcome is Outcome.COMMITTED:
            for append in gone:
                yield Anomaly("lost", f"{append.value} of {transaction.name}, committed, is not in {append.key}")
        if transaction.outcome is not Outcome.ABORTED and 0 < len(gone) < len(appends):
            yield Anomaly("torn", f"{transaction.name}: {[append.value for append in gone]} of {len(appends)} lacking")
        for append in appends:
            key, at = self.lies.get(append.value, (append.key, append.offset))
            if append.offset >= 0 and key == append.key and at != append.offset:
                said = f"{append.value} in {key} was acknowledged at {append.offset} and lies at {at}"
                yield Anomaly("wrong offset", said)

    # -- reads

    def _read(self, reader: Transaction, read: Read) -> Iterator[Anomaly]:
        final = {at: v for at, v in self.history.committed.get(read.key, ()) if read.start <= at < read.end}
        given = dict(read.records)
        who = f"{reader.name}, reading {read.key} from {read.start} to {read.end}"
        for at, value in given.items():
            if final.get(at) == value:
                continue
            writer = self.writer.get(value)
            if writer is None:
                yield Anomaly("made up", f"{who}, was given {value} at {at}")
            elif writer.outcome is Outcome.ABORTED:
                yield Anomaly("G1a", f"{who}, was given {value} at {at}: {writer.name} was aborted")
            elif value in self.place:
                yield Anomaly("wrong offset", f"{who}, was given {value} at {at}, which lies at {self.place[value]}")
            else:
                yield Anomaly("vanished", f"{who}, was given {value} at {at} of {writer.name}")
        for at, value in final.items():
            if at not in given:
                yield Anomaly("skipped", f"{who}, was not given {value} at {at}")
        yield from self._intermediate(who, read)

    def _intermediate(self, who: str, read: Read) -> Iterator[Anomaly]:
        """A stable end lies between two appends of one transaction only where another one, open then, has its first."""
        written = self.history.written.get(read.key, ())
        before = {self.writer[value].name for at, value in written if at < read.end and value in self.writer}
        behind = [(at, self.writer[value]) for at, value in written if at >= read.end and value in self.writer]
        if not behind:
            return
        next_at, next_writer = behind[0]
        first = min(at for at, value in written if self.writer.get(value) is next_writer)
        held_back = next_writer.name not in self.committed or not self.alone
        if held_back and first == next_at:
            return
        for name in sorted({writer.name for _, writer in behind} & before & self.committed):
            yield Anomaly("G1b", f"{who}, saw some appends of {name} and not the later ones")

    def _steps(self) -> Iterator[Anomaly]:
        reads: dict[str, list[tuple[Read, str]]] = defaultdict(list)
        for transaction in self.history.transactions:
            for read in transaction.reads():
                reads[read.key].append((read, transaction.name))
        for key, those in reads.items():
            answered = sorted(those, key=lambda each: each[0].answered)
            furthest, by, index = 0, "", 0
            for read, name in sorted(those, key=lambda each: each[0].asked):
                while index < len(answered) and answered[index][0].answered < read.asked:
                    if answered[index][0].end > furthest:
                        furthest, by = answered[index][0].end, answered[index][1]
                    index += 1
                if read.end < furthest:
                    yield Anomaly(
                        "stepped back", f"{name} read {key} to {read.end}, {by} had come to {furthest} before"
                    )

    # -- order

    def _order(self) -> Iterator[Anomaly]:
        """One producer's values in a key, in the order in which it sent them."""
        last: dict[tuple[str, str], tuple[int, int]] = {}
        for transaction in sorted(self.history.transactions, key=lambda each: each.began):
            for append in transaction.appends():
                found = self.lies.get(append.value)
                if found is None or found[0] != append.key:
                    continue
                place = (transaction.producer, append.key)
                before = last.get(place, (-1, -1))
                if found[1] < before[0]:
                    said = f"{append.value} of {transaction.name} in {append.key} at {found[1]}, behind it {before[1]}"
                    yield Anomaly("out of order", f"{said} at {before[0]}, which was sent before")
                last[place] = max(before, (found[1], append.value))

    def _late(self) -> Iterator[Anomaly]:
        """What a transaction appended lies in front of all that began after its end was answered, whoever wrote it."""
        spans: dict[str, list[tuple[int, int, Transaction]]] = defaultdict(list)
        for transaction in self.history.transactions:
            mine: dict[str, list[int]] = defaultdict(list)
            for append in transaction.appends():
                key, at = self.lies.get(append.value, ("", -1))
                if key == append.key:
                    mine[key].append(at)
            for key, places in mine.items():
                spans[key].append((min(places), max(places), transaction))
        for key, those in spans.items():
            ended = sorted(
                (each for each in those if each[2].outcome is not Outcome.UNKNOWN and each[2].ended),
                key=lambda each: each[2].ended,
            )
            begun = sorted(those, key=lambda each: each[2].began)
            latest: tuple[int, int, Transaction] | None = None
            index = 0
            for least, _, transaction in begun:
                while index < len(ended) and ended[index][2].ended < transaction.began:
                    if latest is None or ended[index][1] > latest[1]:
                        latest = ended[index]
                    index += 1
                if latest is not None and latest[1] > least:
                    said = f"{latest[2].name} has {latest[1]} in {key}, and had ended before {transaction.name} began"
                    yield Anomaly("late", f"{said}, which has {least}")

    def _zombies(self) -> Iterator[Anomaly]:
        """After InitProducerId has answered, nothing of the older life is acknowledged."""
        for transaction in self.history.transactions:
            own = self.history.lives.get((transaction.producer, transaction.life))
            if own is None:
                continue
            newer = [
                life.answered
                for (producer, _), life in self.history.lives.items()
                if producer == transaction.producer and life.asked > own.answered
            ]
            if not newer:
                continue
            fenced = min(newer)
            if transaction.outcome is Outcome.COMMITTED and transaction.asked > fenced and any(transaction.appends()):
                yield Anomaly("zombie", f"{transaction.name} was committed after its producer's next life had begun")
            for append in transaction.appends():
                if append.offset >= 0 and append.sent > fenced:
                    yield Anomaly("zombie", f"{append.value} of {transaction.name} was acknowledged in the next life")

    # -- cycles

    def _cycles(self) -> Iterator[Anomaly]:
        overwrote: dict[str, set[str]] = defaultdict(set)
        saw: dict[str, set[str]] = defaultdict(set)
        if self.alone:
            for records in self.history.committed.values():
                names = [self.writer[value].name for _, value in records if value in self.writer]
                for before, after in pairwise(names):
                    if before != after:
                        overwrote[before].add(after)
        for transaction in self.history.transactions:
            if transaction.name in self.committed:
                for read in transaction.reads():
                    for _, value in read.records:
                        writer = self.writer.get(value)
                        if writer is not None and writer is not transaction and writer.name in self.committed:
                            saw[writer.name].add(transaction.name)
        for circle in circles(overwrote):
            yield Anomaly("G0", f"{' → '.join(circle)} → {circle[0]}")
        both = {name: overwrote.get(name, set()) | saw.get(name, set()) for name in {*overwrote, *saw}}
        for circle in circles(both):
            inside = set(circle)
            if any(saw.get(name, set()) & inside for name in circle):
                yield Anomaly("G1c", f"among {', '.join(circle)}")

    # -- positions

    def _positions(self) -> Iterator[Anomaly]:
        """A group's position is that of the last transaction which committed one; positions only grow."""
        moves: dict[str, list[tuple[int, Transaction]]] = defaultdict(list)
        for transaction in self.history.transactions:
            for each in transaction.operations:
                if isinstance(each, Moved):
                    moves[each.key].append((each.offset, transaction))
        asked = [
            (each.key, each.offset, each.asked, each.answered, transaction.name)
            for transaction in self.history.transactions
            for each in transaction.operations
            if isinstance(each, Found)
        ]
        asked += [(key, offset, 1 << 62, 1 << 62, END) for key, offset in self.history.positions.items()]
        for key, offset, when, answered, who in asked:
            those = [(at, t) for at, t in moves[key] if t.began < answered]
            ended = [(at, t) for at, t in those if 0 < t.ended < when or who == END]
            sure = max((at for at, t in ended if t.name in self.committed), default=-1)
            possible = {at for at, t in those if t.name in self.committed or self._is_open(t)} | {-1}
            said = f"{who}: {key} at {offset}, committed {sure}"
            if offset not in possible:
                kind = "aborted position" if offset in {at for at, _ in those} else "wrong position"
                yield Anomaly(kind, said)
            elif offset < sure:
                yield Anomaly("wrong position", said)


def circles(edges: Mapping[str, Iterable[str]]) -> list[list[str]]:
    """The strongly connected components of more than one node (Tarjan's, without recursion), each in order of names."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    on_stack: set[str] = set()
    found: list[list[str]] = []
    for root in sorted(edges):
        if root in index:
            continue
        work: list[tuple[str, Iterator[str]]] = [(root, iter(sorted(edges.get(root, ()))))]
        index[root] = low[root] = len(index)
        stack.append(root)
        on_stack.add(root)
        while work:
            node, following = work[-1]
            for other in following:
                if other not in index:
                    index[other] = low[other] = len(index)
                    stack.append(other)
                    on_stack.add(other)
                    work.append((other, iter(sorted(edges.get(other, ())))))
                    break
                if other in on_stack:
                    low[node] = min(low[node], index[other])
            else:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[node])
                if low[node] == index[node]:
                    members: list[str] = []
                    while not members or members[-1] != node:
                        members.append(stack.pop())
                        on_stack.discard(members[-1])
                    if len(members) > 1:
                        found.append(sorted(members))
    return found
