"""What is read where a reader begins or ends elsewhere than its log does."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import pytest
from confluent_kafka import KafkaError

from duramen.cli.shared.outlet import Place
from duramen.cli.shared.read_range import Newest, Until


class Given(NamedTuple):
    """A message: a record, or word that its partition was read to its end."""

    place: int
    at: int
    time: int = 0
    end: bool = False

    def topic(self) -> str:
        return "t"

    def partition(self) -> int:
        return self.place

    def offset(self) -> int:
        return self.at

    def timestamp(self) -> tuple[int, int]:
        return 1, self.time

    def error(self) -> KafkaError | None:
        return KafkaError(KafkaError._PARTITION_EOF) if self.end else None


class Log:
    """Partitions as a consumer reads them: from where each stands, those that are not paused."""

    def __init__(self, *partitions: Sequence[tuple[int, int]]) -> None:
        """partitions: offset and time of each record."""
        self.records = [list(records) for records in partitions]
        self.at = [0 for _ in partitions]
        self.told = [False for _ in partitions]
        self.paused: set[Place] = set()

    def read(self, count: int, timeout: float) -> list[Any]:
        """Of one partition, and behind its last record that this was the last, as librdkafka gives them."""
        given = self._of_one(count)
        if given and len(given) < count and not given[-1].end:
            given += [Given(given[-1].place, self.at[given[-1].place], end=True)]
            self.told[given[-1].place] = True
        return given

    def _of_one(self, count: int) -> list[Any]:
        for partition, records in enumerate(self.records):
            if ("t", partition) in self.paused:
                continue
            found = [Given(partition, *record) for record in records if record[0] >= self.at[partition]][:count]
            if found:
                self.at[partition], self.told[partition] = found[-1].at + 1, False
                return list(found)
            if not self.told[partition]:
                self.told[partition] = True
                return [Given(partition, self.at[partition], end=True)]
        return []

    def rewind(self, place: Place, offset: int) -> None:
        self.at[place[1]], self.told[place[1]] = offset, False


def everything(reader: Until | Newest, count: int = 2) -> list[tuple[int, int]]:
    found: list[Any] = []
    for _ in range(30):
        found += reader.read(count, 0.0)
    return [(message.place, message.at) for message in found if not message.end]


def test_a_partition_ends_in_front_of_its_offset_also_where_that_is_gone() -> None:
    log = Log([(n, n) for n in range(9)], [(0, 0), (7, 7)], [(0, 0)])
    until = Until(log.read, {("t", 0): 3, ("t", 1): 4, ("t", 2): 1}, None, log.paused.update)
    everywhere = {("t", number) for number in range(3)}
    assert not until.at_end(everywhere, set(), follow=True)
    assert everything(until) == [(0, 0), (0, 1), (0, 2), (1, 0), (2, 0)]
    assert log.paused == everywhere
    assert until.at_end(everywhere, set(), follow=True)


def test_a_log_that_ends_before_the_offset_is_the_end_unless_it_is_followed() -> None:
    log = Log([(0, 0)])
    until = Until(log.read, {("t", 0): 3}, None, log.paused.update)
    assert everything(until) == [(0, 0)]
    assert until.at_end({("t", 0)}, {("t", 0)}, follow=False)
    assert not until.at_end({("t", 0)}, {("t", 0)}, follow=True)
    log.records[0] += [(1, 0), (2, 0), (3, 0)]
    assert everything(until) == [(0, 1), (0, 2)]
    assert until.at_end({("t", 0)}, set(), follow=True)


def test_an_end_that_is_told_at_the_offset_is_there() -> None:
    """The last offsets were those of markers, or compacted away."""
    log = Log([(0, 0)])
    until = Until(log.read, {("t", 0): 3}, None, log.paused.update)
    everything(until)
    log.at[0], log.told[0] = 3, False
    everything(until)
    assert until.at_end({("t", 0)}, set(), follow=True)


def test_where_no_record_is_of_that_time_yet_the_first_one_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [50]
    monkeypatch.setattr("duramen.cli.shared.read_range.now_ms", lambda: now[0])
    log = Log([(0, 10)], [(0, 20)])
    until = Until(log.read, {}, 100, log.paused.update)
    both = {("t", 0), ("t", 1)}
    assert everything(until) == [(0, 0), (1, 0)]
    log.records[0] += [(1, 99), (2, 100), (3, 98)]
    assert everything(until) == [(0, 1)]
    assert not until.at_end(both, both, follow=True)
    now[0] = 100  # nothing of that time has come in the other partition, and the time is there
    assert until.at_end(both, both, follow=True)
    assert not until.at_end(both, {("t", 0)}, follow=True)


def newest(log: Log, count: int, ends: dict[int, tuple[int, int]]) -> Newest:
    where = {("t", number): pair for number, pair in ends.items()}
    starts = {place: max(first, last - count) for place, (first, last) in where.items()}
    for place, start in starts.items():
        log.rewind(place, start)
    return Newest(log.read, count, where, starts, log.rewind)


def test_the_newest_of_all_partitions_come_in_the_order_of_their_times() -> None:
    log = Log([(0, 10), (1, 40), (2, 50)], [(0, 20), (1, 30), (2, 45)], [])
    reader = newest(log, 4, {0: (0, 3), 1: (0, 3), 2: (0, 0)})
    assert everything(reader) == [(1, 1), (0, 1), (1, 2), (0, 2)]
    log.records[1].append((3, 5))
    assert everything(reader) == [(1, 3)]


def test_a_partition_keeps_the_order_of_its_log_whatever_its_times() -> None:
    log = Log([(0, 90), (1, 80), (2, 10)], [(0, 50)])
    assert everything(newest(log, 3, {0: (0, 3), 1: (0, 1)})) == [(0, 1), (0, 2), (1, 0)]


def test_fewer_records_than_offsets_are_looked_for_further_back() -> None:
    log = Log([(5, 5), (20, 20), (21, 21), (60, 60)])
    assert everything(newest(log, 3, {0: (0, 70)})) == [(0, 20), (0, 21), (0, 60)]
    assert everything(newest(log, 9, {0: (0, 70)})) == [(0, 5), (0, 20), (0, 21), (0, 60)]
    assert everything(newest(log, 9, {0: (0, 70)}), 500) == [(0, 5), (0, 20), (0, 21), (0, 60)]
    given: list[Any] = newest(log, 20, {0: (0, 61)}).read(500, 0.0)
    # The end was told once before, behind what was read first: taken for that of the second reading, it ended all.
    assert [(message.at, message.end) for message in given] == [
        (5, False),
        (20, False),
        (21, False),
        (60, False),
        (61, True),
    ]


def test_the_end_of_a_partition_is_told_behind_its_records() -> None:
    """Else whoever waits for it has seen it, and then a record that says that it is not there yet."""
    log = Log([(0, 0)], [(0, 0)])
    reader = newest(log, 5, {0: (0, 1), 1: (0, 2)})
    found = [message for _ in range(9) for message in reader.read(10, 0.0)]
    assert [message.end for message in found if message.place == 0] == [False, True]  # type: ignore[attr-defined]
    assert [message.end for message in found if message.place == 1] == [False, True]  # type: ignore[attr-defined]
