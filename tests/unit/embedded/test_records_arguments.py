"""What callers may hand over, and what would break a stored log if it were taken as it comes."""

from __future__ import annotations

import array
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

import pytest

import duramen
from duramen.wire.key_partitions import partition_for

NUMBERS = array.array("i", [1, 2, 3])


@pytest.mark.parametrize(
    ("view", "plain"),
    [
        (memoryview(NUMBERS), NUMBERS.tobytes()),
        (memoryview(b"abcdef")[::2], b"ace"),
        (memoryview(b"abcd").cast("B", (2, 2)), b"abcd"),
    ],
)
def test_a_view_is_stored_as_the_bytes_it_shows(tmp_path: Path, view: memoryview, plain: bytes) -> None:
    with duramen.open(tmp_path) as log:
        events = log.topic("events", partitions=7)
        events.append([duramen.Record(value=view, key=view, headers=[("h", view)])])
        (stored,) = events.read(partition_for(plain, 7))
    assert (stored.value, stored.key, stored.headers) == (plain, plain, (("h", plain),))


def test_headers_that_can_be_gone_through_once_are_stored(tmp_path: Path) -> None:
    with duramen.open(tmp_path) as log:
        events = log.topic("events")
        once = cast(Sequence[tuple[str, bytes]], iter([("h", b"1")]))
        events.append([duramen.Record(value=b"v", headers=once)])
        (stored,) = events.read(0)
    assert stored.headers == (("h", b"1"),)


@pytest.mark.parametrize("offset", [1.5, "2", None])
def test_what_is_no_offset_does_not_truncate(tmp_path: Path, offset: Any) -> None:
    with duramen.open(tmp_path) as log:
        events = log.topic("events")
        events.append([duramen.Record(value=b"v")] * 5)
        with pytest.raises(TypeError):
            events.truncate(0, offset)
    with duramen.open(tmp_path) as log:
        assert len(list(log.topic("events").read(0))) == 5


def test_a_negative_offset_truncates_nothing(tmp_path: Path) -> None:
    """In Kafka's DeleteRecords -1 stands for the end: every record. Here it is what `first - 1` gave."""
    with duramen.open(tmp_path) as log:
        events = log.topic("events")
        events.append([duramen.Record(value=b"v")] * 5)
        with pytest.raises(duramen.KafkaError, match="-1"):
            events.truncate(0, -1)
        assert len(list(events.read(0))) == 5


@pytest.mark.parametrize("moment", [-1, -2, -3, -5, -6, -(10**6)])
def test_a_moment_before_1970_is_a_moment(tmp_path: Path, moment: int) -> None:
    """Not one of the names that ListOffsets has for the ends of a log."""
    with duramen.open(tmp_path) as log:
        events = log.topic("events")
        assert events.offset_at(0, moment) is None
        events.append([duramen.Record(value=b"v", timestamp_ms=number) for number in (7, 5, 9)])
        assert events.offset_at(0, moment) == 0
        assert events.truncate(0, 2) == 2
        assert events.offset_at(0, moment) == 2


def test_the_directory_stays_where_it_is_when_the_process_goes_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "elsewhere").mkdir()
    with duramen.open("log", {"log.segment.bytes": str(1 << 20)}) as log:
        events = log.topic("events")
        monkeypatch.chdir(tmp_path / "elsewhere")
        for _ in range(5):
            events.append([duramen.Record(value=bytes(600_000))])
        log.topic("more").append([duramen.Record(value=b"v")])
    assert not list((tmp_path / "elsewhere").iterdir())
    with duramen.open(tmp_path / "log") as log:
        assert log.topics() == ["events", "more"]
        assert len(list(log.topic("events").read(0))) == 5


@pytest.mark.parametrize("nowhere", ["", b""])
def test_no_path_is_no_directory(nowhere: Any) -> None:
    with pytest.raises((duramen.DuramenError, TypeError)):
        duramen.open(nowhere)


@pytest.mark.parametrize("wrong", [1.5, 1.0, "1"])
def test_what_is_no_position_finds_nothing(tmp_path: Path, wrong: Any) -> None:
    """From 1.5 a read began at 2; partition 1.5 "was deleted", and 1.0 came back in the records."""
    with duramen.open(tmp_path) as log:
        events = log.topic("events", partitions=3)
        events.append([duramen.Record(value=b"v")] * 5, partition=1)
        calls: list[Callable[[], object]] = [
            lambda: next(events.read(1, start=wrong)),
            lambda: next(events.read(1, end=wrong)),
            lambda: next(events.read(wrong)),
            lambda: events.end_offset(wrong),
            lambda: events.append([duramen.Record(value=b"v")], partition=wrong),
        ]
        for call in calls:
            with pytest.raises(TypeError):
                call()
        assert events.end_offset(1) == 5


@pytest.mark.parametrize("timeout", ["5", float("nan")])
def test_what_is_no_length_of_time_stores_nothing(tmp_path: Path, timeout: Any) -> None:
    with duramen.open(tmp_path) as log:
        events = log.topic("events")
        with pytest.raises((TypeError, ValueError)):
            events.append([duramen.Record(value=b"v")], timeout=timeout)
        assert events.append([duramen.Record(value=b"v")], timeout=60) == [0]


def test_a_refused_number_of_partitions_makes_no_topic(tmp_path: Path) -> None:
    """-1 stood for the default: the topic was made, and refused for having another number than -1."""
    with duramen.open(tmp_path) as log:
        for partitions in (-1, 0):
            with pytest.raises(duramen.KafkaError, match=str(partitions)):
                log.topic("events", partitions=partitions)
        assert log.topics() == []


def test_times_that_are_too_far_apart_for_one_batch_are_refused(tmp_path: Path) -> None:
    """2^63 - 1 behind -1 was stored as a difference of 2^63, and read as -2^63 - 2."""
    with duramen.open(tmp_path) as log:
        events = log.topic("events", configs={"message.timestamp.after.max.ms": str(2**63 - 1)})
        with pytest.raises(TypeError, match="timestamp_ms"):
            events.append([duramen.Record(timestamp_ms=-1), duramen.Record(timestamp_ms=2**63 - 1)])
        events.append([duramen.Record(timestamp_ms=-1), duramen.Record(timestamp_ms=2**63 - 2)])
        assert [row.timestamp_ms for row in events.read(0)] == [-1, 2**63 - 2]


@pytest.mark.parametrize("compression", ["producer", "zstd", "gzip", "snappy", "lz4"])
def test_a_large_call_is_cut_into_batches_that_the_topic_takes(tmp_path: Path, compression: str) -> None:
    """It was refused where `max.message.bytes` is below half a megabyte; names were counted in characters."""
    values = [random.Random(number).randbytes(1 + 37 * (number % 50)) for number in range(900)]
    rows = [
        duramen.Record(value, b"k" * (n % 9), [("ü" * (n % 70), b"1"), ("none", None)], 1 << 62 * (n % 2))
        for n, value in enumerate(values)
    ]
    configs = {"max.message.bytes": "4000", "compression.type": compression}
    with duramen.open(tmp_path) as log:
        events = log.topic("events", configs={**configs, "message.timestamp.after.max.ms": str(2**63 - 1)})
        assert events.append(rows) == list(range(len(rows)))
        assert [(row.value, row.headers) for row in events.read(0)] == [(row.value, tuple(row.headers)) for row in rows]


@pytest.mark.parametrize("configs", [{"cleanup.policy": "compact"}, {"compression.type": "gzip"}])
def test_batches_that_are_decoded_first_may_be_many(tmp_path: Path, configs: dict[str, str]) -> None:
    """Of a call of many batches, and of many calls at once, those behind the first 257 were refused."""
    with duramen.open(tmp_path) as log:
        topic = log.topic("t", configs=configs | {"max.message.bytes": "1000"})
        assert topic.append([duramen.Record(b"x" * 800, b"k")] * 400) == list(range(400))
        futures = [topic.append_async([duramen.Record(b"x", b"k")]) for _ in range(1000)]
        assert [future.result() for future in futures] == [[400 + number] for number in range(1000)]


@pytest.mark.parametrize("name", ["__consumer_offsets", "__duramen_sink_state", "__duramen_staging"])
def test_what_coordinators_keep_is_neither_written_nor_truncated(tmp_path: Path, name: str) -> None:
    """As a node refuses it: strange or missing records there cost groups and sinks what they have committed."""
    with duramen.open(tmp_path) as log:
        log._made_topic(name, 1, {})  # as a node has made it
        kept = log.topic(name)
        for refused in (
            lambda: kept.append([duramen.Record(value=b"v", key=b"k")]),
            lambda: kept.append_async([duramen.Record(value=b"v", key=b"k")]),
            lambda: kept.truncate(0, 0),
        ):
            with pytest.raises(duramen.KafkaError, match="coordinators only"):
                refused()
        assert list(kept.read(0)) == []


def test_a_log_that_this_process_has_open_is_named_so(tmp_path: Path) -> None:
    """Running a notebook's cell again drops the log that it opened: it stays open, for threads work on it."""
    log = duramen.open(tmp_path)
    (tmp_path.parent / "link").symlink_to(tmp_path)
    for place in (tmp_path, tmp_path.parent / "link"):
        with pytest.raises(duramen.DirectoryLockedError, match="this process has it open; close"):
            duramen.open(place)
    log.close()
    duramen.open(tmp_path).close()
