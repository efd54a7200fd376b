"""Which records of its partitions a reader wants that begins or ends elsewhere than where the log does."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence

from confluent_kafka import KafkaError, Message

from duramen.cli.shared.outlet import Place
from duramen.cli.shared.position import now_ms

Read = Callable[[int, float], list[Message]]


def place_of(message: Message) -> Place:
    """Topic and partition of a message."""
    return str(message.topic()), message.partition() or 0


def _is_end(message: Message) -> bool:
    error = message.error()
    return error is not None and error.code() == KafkaError._PARTITION_EOF


class Until:
    """Reads each partition to an offset or to the first record of a time, neither of which is read.

    stops: the offset at which a partition ends. time_ms: where none is known. pause: fetches no more of these.
    """

    def __init__(
        self, read: Read, stops: Mapping[Place, int], time_ms: int | None, pause: Callable[[Collection[Place]], object]
    ) -> None:
        self._read = read
        self._stops = stops
        self._time_ms = time_ms
        self._pause = pause
        self._done: set[Place] = set()

    def read(self, count: int, timeout: float) -> list[Message]:
        """The next messages, without those that lie behind the end that was asked for."""
        before = set(self._done)
        kept = [message for message in self._read(count, timeout) if self._takes(message)]
        if self._done != before:
            self._pause(sorted(self._done - before))
        return kept

    def _takes(self, message: Message) -> bool:
        place, offset = place_of(message), message.offset() or 0
        stop = self._stops.get(place)
        if message.error() is not None:
            if _is_end(message) and stop is not None and offset >= stop:
                self._done.add(place)
            return True
        if place in self._done:
            return False
        if stop is not None:
            if offset + 1 >= stop:
                self._done.add(place)
            return offset < stop
        if self._time_ms is not None and message.timestamp()[1] >= self._time_ms:
            self._done.add(place)
            return False
        return True

    def at_end(self, assigned: Collection[Place], reached: Collection[Place], *, follow: bool) -> bool:
        """Whether nothing more is wanted. Who follows ends at the log's end only when the time has passed."""
        here = not follow or (self._time_ms is not None and now_ms() >= self._time_ms)
        return all(place in self._done or (here and place in reached) for place in assigned)


class Newest:
    """Reads the newest records of all partitions together, by their times, and then whatever comes behind them.

    ends: the first and the last offset of each partition. starts: where each is read first. rewind: reads one from an
    offset on, where there were fewer records than offsets.
    """

    def __init__(
        self,
        read: Read,
        count: int,
        ends: Mapping[Place, tuple[int, int]],
        starts: Mapping[Place, int],
        rewind: Callable[[Place, int], object],
    ) -> None:
        self._read = read
        self._count = count
        self._ends = ends
        self._starts = dict(starts)
        self._rewind = rewind
        self._found: dict[Place, deque[Message]] = {place: deque(maxlen=count) for place in starts}
        self._pending = {place for place, start in starts.items() if start < ends[place][1]}
        self._held: list[Message] = []
        """That partitions were read to their end, which is said behind their records."""
        self._rewound: set[Place] = set()
        """Partitions of which more was given at once than led to their rewinding: it comes again."""
        self._given = False

    def read(self, count: int, timeout: float) -> list[Message]:
        """Nothing until all is read that can be among the newest; then those, and from then on what comes."""
        if self._given:
            return self._read(count, timeout)
        others = []
        while self._pending:
            given = self._read(count, timeout)
            self._rewound.clear()
            others += [message for message in given if not self._keeps(message)]
            if not given or others:
                break
        if self._pending:
            return others
        self._given = True
        return [*others, *newest(self._found.values(), self._count), *self._held]

    def _keeps(self, message: Message) -> bool:
        place = place_of(message)
        if place not in self._found:
            return False
        if place in self._rewound:
            return True
        if _is_end(message):
            self._held.append(message)
            self._read_to_end(place)
            return True
        if message.error() is not None:
            return False
        self._found[place].append(message)
        if (message.offset() or 0) + 1 >= self._ends[place][1]:
            self._read_to_end(place)
        return True

    def _read_to_end(self, place: Place) -> None:
        (first, last), start = self._ends[place], self._starts[place]
        if place not in self._pending or len(self._found[place]) == self._count or start <= first:
            self._pending.discard(place)
            return
        # A compacted log, or one with transactions, has fewer records than offsets.
        self._starts[place] = max(first, last - 4 * (last - start))
        self._found[place].clear()
        self._held = [message for message in self._held if place_of(message) != place]
        self._rewound.add(place)
        self._rewind(place, self._starts[place])


def newest(columns: Collection[Sequence[Message]], count: int) -> list[Message]:
    """The newest of the messages of several partitions, oldest first; of each partition in the order of its log."""
    left = {number: len(column) for number, column in enumerate(columns)}
    lists = list(columns)
    # Of equal times that of the last partition is the newest, so that the first stands first.
    heap = [(-lists[number][-1].timestamp()[1], -number) for number, length in left.items() if length]
    heapq.heapify(heap)
    found: list[Message] = []
    while heap and len(found) < count:
        number = -heapq.heappop(heap)[1]
        left[number] -= 1
        found.append(lists[number][left[number]])
        if left[number]:
            heapq.heappush(heap, (-lists[number][left[number] - 1].timestamp()[1], -number))
    return found[::-1]
