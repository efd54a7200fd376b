"""The embedded log as its users see it: durable appends, replay, positions, truncation, threads, errors."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import duramen
from duramen.embedded import EmbeddedLog
from duramen.errors import ConfigError, StorageError
from duramen.machines.metadata.commands import DeleteTopics, TopicRef
from duramen.partition.metadata.controller import Controller
from duramen.partition.replica import partition
from duramen.partition.replica.partition import Partition
from duramen.storage.log.create import CreateLogsJob
from duramen.storage.read.timestamp_lookup import TimeLookup
from duramen.wire.key_partitions import murmur2, partition_for

EXAMPLE = Path(__file__).parents[3] / "examples" / "kvstore.py"


def test_append_returns_offsets_and_read_gives_the_records_back(tmp_path: Path) -> None:
    with duramen.open(tmp_path / "log") as log:
        events = log.topic("events", partitions=1)
        offsets = events.append(
            [
                duramen.Record(value=b"v", key=b"k", headers=[("h", b"1"), ("none", None)], timestamp_ms=17),
                duramen.Record(value=None, key=b"k"),
            ]
        )
        assert offsets == [0, 1]
        first, second = events.read(0, start=offsets[0], follow=False)
    assert (first.offset, first.timestamp_ms, first.key, first.value) == (0, 17, b"k", b"v")
    assert first.headers == (("h", b"1"), ("none", None))
    assert second.value is None


def test_everything_is_there_after_closing_and_opening_again(tmp_path: Path) -> None:
    for round_number in range(3):
        with duramen.open(tmp_path) as log:
            events = log.topic("events")
            assert [r.value for r in events.read(0)] == [b"%d" % n for n in range(round_number)]
            assert events.append([duramen.Record(value=b"%d" % round_number)]) == [round_number]


def test_positions_by_time_and_truncation(tmp_path: Path) -> None:
    with duramen.open(tmp_path) as log:
        events = log.topic("events")
        for number in range(20):
            events.append([duramen.Record(value=b"%d" % number, timestamp_ms=1000 + number)])
        assert events.offset_at(0, 1007) == 7
        assert events.offset_at(0, 5000) is None
        assert events.truncate(0, 12) == 12
        assert events.start_offset(0) == 12
        assert [r.offset for r in events.read(0)] == list(range(12, 20))
        with pytest.raises(duramen.KafkaError) as refused:
            next(events.read(0, start=3))
        assert refused.value.code is duramen.ErrorCode.OFFSET_OUT_OF_RANGE
    with duramen.open(tmp_path) as log:
        assert log.topic("events").start_offset(0) == 12


def test_keys_choose_partitions_as_kafkas_partitioner_does(tmp_path: Path) -> None:
    # Values of org.apache.kafka.common.utils.Utils.murmur2, from Kafka's own UtilsTest.
    assert murmur2(b"21") == -973932308
    assert murmur2(b"foobar") == -790332482
    assert murmur2(b"a-little-bit-long-string") == -985981536
    with duramen.open(tmp_path) as log:
        topic = log.topic("many", partitions=7)
        keys = [b"key-%d" % n for n in range(50)]
        topic.append([duramen.Record(key=key, value=key) for key in keys])
        for partition in range(7):
            assert [r.key for r in topic.read(partition)] == [k for k in keys if partition_for(k, 7) == partition]


def test_threads_share_group_commits_and_lose_nothing(tmp_path: Path) -> None:
    with duramen.open(tmp_path) as log:
        topic = log.topic("shared")
        offsets: list[int] = []

        def work(name: int) -> None:
            for number in range(25):
                offsets.extend(topic.append([duramen.Record(key=b"%d" % name, value=b"%d" % number)]))

        threads = [threading.Thread(target=work, args=(name,)) for name in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(offsets) == list(range(200))
        by_key: dict[bytes | None, list[bytes | None]] = {}
        for record in topic.read(0):
            by_key.setdefault(record.key, []).append(record.value)
        assert all(values == [b"%d" % n for n in range(25)] for values in by_key.values())
        assert len(by_key) == 8


def test_append_async_and_following_reader(tmp_path: Path) -> None:
    with duramen.open(tmp_path) as log:
        topic = log.topic("live")
        seen: list[bytes | None] = []

        def follow() -> None:
            for record in topic.read(0, follow=True, end=30):
                seen.append(record.value)

        reader = threading.Thread(target=follow)
        reader.start()
        futures = [topic.append_async([duramen.Record(value=b"%d" % n)]) for n in range(30)]
        assert [future.result(60) for future in futures] == [[n] for n in range(30)]
        reader.join(60)
        assert seen == [b"%d" % n for n in range(30)]


def test_one_process_at_a_time(tmp_path: Path) -> None:
    with duramen.open(tmp_path), pytest.raises(duramen.DirectoryLockedError):
        duramen.open(tmp_path)
    duramen.open(tmp_path).close()


@pytest.mark.parametrize("policy", ["delete", "compact"])
def test_a_call_of_several_batches_is_refused_as_a_whole(tmp_path: Path, policy: str) -> None:
    rows = [duramen.Record(value=b"x" * 100_000, key=b"k")] * 20
    bad = duramen.Record(value=b"x" * 3_000_000, key=b"k") if policy == "delete" else duramen.Record(value=b"keyless")
    with duramen.open(tmp_path) as log:
        topic = log.topic("a", configs={"cleanup.policy": policy})
        with pytest.raises(duramen.KafkaError) as refused:
            topic.append([*rows, bad])
        assert refused.value.code.name == ("MESSAGE_TOO_LARGE" if policy == "delete" else "INVALID_RECORD")
        assert topic.end_offset(0) == 0
        assert topic.append(rows) == list(range(20))


def test_a_call_of_which_some_batches_are_stored_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As when the journal has no room for the second batch: what comes behind the first is refused."""
    append, batches = Partition.append, []

    def refuse_second(self: Partition, view: memoryview, acks: int, now_ms: int, done: Any) -> None:
        batches.append(view)
        if len(batches) == 2:
            done(duramen.KafkaError(duramen.ErrorCode.THROTTLING_QUOTA_EXCEEDED, "no room"))
        else:
            append(self, view, acks, now_ms, done)

    with duramen.open(tmp_path) as log:
        topic = log.topic("a")
        monkeypatch.setattr(Partition, "append", refuse_second)
        with pytest.raises(duramen.KafkaError, match="no room; 5 of this call's 15 records are stored all the same"):
            topic.append([duramen.Record(value=b"x" * 100_000)] * 15)
        assert topic.end_offset(0) == 5


def test_refusals_say_what_is_wrong(tmp_path: Path) -> None:
    log = duramen.open(tmp_path)
    topic = log.topic("a", partitions=2)
    with pytest.raises(duramen.ConfigError, match="has 2 partitions"):
        log.topic("a", partitions=3)
    with pytest.raises(duramen.KafkaError):
        log.topic("../escape")
    with pytest.raises(duramen.KafkaError):
        topic.append([duramen.Record(value=b"v")], partition=2)
    with pytest.raises(duramen.KafkaError) as too_large:
        topic.append([duramen.Record(value=b"x" * 2_000_000)])
    assert too_large.value.code is duramen.ErrorCode.MESSAGE_TOO_LARGE
    assert log.topics() == ["a"]
    log.delete_topic("a")
    assert log.topics() == []
    log.close()
    log.close()
    with pytest.raises(duramen.ClosedError):
        log.topic("a")


@pytest.mark.parametrize(
    ("row", "what"),
    [
        (b"x", "records are duramen.Record objects, not bytes"),
        (duramen.Record(value="x"), "a record's value is bytes or None, not str"),  # type: ignore[arg-type]
        (duramen.Record(key="k"), "a record's key is bytes or None, not str"),  # type: ignore[arg-type]
        (duramen.Record(headers={"h": b"1"}), "a header is a pair"),  # type: ignore[arg-type]
        (duramen.Record(headers=[("h", "1")]), "the value of the header 'h' is bytes"),  # type: ignore[list-item]
        (duramen.Record(timestamp_ms="1"), "timestamp_ms is milliseconds since 1970"),  # type: ignore[arg-type]
        (duramen.Record(timestamp_ms=1 << 63), "timestamp_ms is milliseconds since 1970"),
        (duramen.Record(timestamp_ms=1.7e12), "timestamp_ms is milliseconds since 1970"),  # type: ignore[arg-type]
    ],
)
def test_what_is_no_record_is_a_type_error(tmp_path: Path, row: duramen.Record, what: str) -> None:
    with duramen.open(tmp_path) as log:
        events = log.topic("events")
        with pytest.raises(TypeError, match=what):
            events.append([duramen.Record(value=b"good"), row])
        assert events.end_offset(0) == 0


def test_a_timestamp_may_be_a_whole_number_of_numpys(tmp_path: Path) -> None:
    with duramen.open(tmp_path) as log:
        events = log.topic("events")
        for when in (17, np.int64(18), np.uint64(1_700_000_000_000)):
            events.append([duramen.Record(value=b"v", timestamp_ms=when)])  # type: ignore[arg-type]
        assert [record.timestamp_ms for record in events.read(0)] == [17, 18, 1_700_000_000_000]


def test_settings_are_texts(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match=r"'log[.]segment[.]bytes' is given as 5000000"):
        duramen.open(tmp_path, {"log.segment.bytes": 5_000_000})  # type: ignore[dict-item]
    with duramen.open(tmp_path) as log:
        with pytest.raises(TypeError, match=r"'retention[.]ms' is given as 5"):
            log.topic("events", configs={"retention.ms": 5})  # type: ignore[dict-item]
        assert log.topics() == []


def test_a_place_that_holds_no_directory(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(duramen.StorageError, match="file: Not a directory"):
        duramen.open(tmp_path / "file")


def test_a_fork_must_not_use_its_parents_log(tmp_path: Path) -> None:
    with duramen.open(tmp_path) as log:
        topic = log.topic("a")
        log._pid = os.getpid() + 1
        with pytest.raises(duramen.ClosedError, match="fork"):
            topic.append([duramen.Record(value=b"v")])
        log._pid = os.getpid()


def test_the_key_value_store_survives_kill_9(tmp_path: Path) -> None:
    directory = str(tmp_path / "kv")
    process = subprocess.Popen(
        [sys.executable, str(EXAMPLE), directory, "fill", "100000"], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    last = -1
    for line in process.stdout:
        last = int(line)
        if last >= 150:
            process.send_signal(signal.SIGKILL)
            break
    last = max([last, *(int(line) for line in process.stdout if line.strip())])
    process.wait()
    process.stdout.close()
    answer = subprocess.run(
        [sys.executable, str(EXAMPLE), directory, "get", f"key-{last}"], capture_output=True, text=True, timeout=60
    )
    assert answer.stdout == f"value-{last}\n", answer.stderr


def test_threads_that_close_a_log_at_the_same_time_all_come_back(tmp_path: Path) -> None:
    log = duramen.open(str(tmp_path / "log"))
    log.topic("t").append([duramen.Record(b"v")])
    together = threading.Barrier(4)
    back = []

    def close() -> None:
        together.wait()
        log.close()
        back.append(not log._turn._timekeeper.is_alive())

    threads = [threading.Thread(target=close, daemon=True) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert back == [True] * 4, "each comes back, and not before the log is closed"


def test_closing_waits_for_batches_that_are_being_recompressed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their jobs were not counted: their callers waited for ever."""
    closing = threading.Event()
    real = partition.rewrite

    def slow(*arguments: Any) -> Any:
        assert closing.wait(60)
        return real(*arguments)

    log = duramen.open(str(tmp_path / "log"))
    topic = log.topic("t", configs={"compression.type": "gzip"})
    monkeypatch.setattr(partition, "rewrite", slow)
    futures = [topic.append_async([duramen.Record(value)]) for value in (b"a" * 100, b"b" * 100)]
    threading.Timer(1.0, closing.set).start()  # by then a close that does not wait is over
    log.close()
    assert [future.result(60) for future in futures] == [[0], [1]]
    with duramen.open(str(tmp_path / "log")) as again:
        assert [row.value for row in again.topic("t").read(0)] == [b"a" * 100, b"b" * 100]


def test_what_a_future_calls_back_may_wait_for_a_lock_that_others_append_under(tmp_path: Path) -> None:
    """It was called under the log's own lock: who appended with that other lock held stopped the log for ever."""
    theirs = threading.RLock()
    called = threading.Semaphore(0)

    def report(_: Future[list[int]]) -> None:
        called.release()  # from here on it only waits for the lock
        with theirs:
            called.release()

    log = duramen.open(str(tmp_path / "log"))
    topic = log.topic("t")
    worked = []

    def work() -> None:
        with theirs:
            topic.append_async([duramen.Record(b"1")]).add_done_callback(report)
            assert called.acquire(timeout=60)
            worked.append(topic.append([duramen.Record(b"2")]))
        assert called.acquire(timeout=60)
        log.close()

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(60)
    assert not thread.is_alive()
    assert worked == [[1]]


def test_what_a_future_calls_back_may_append_and_close(tmp_path: Path) -> None:
    log = duramen.open(str(tmp_path / "log"))
    topic = log.topic("t")
    found = []
    closed = threading.Event()

    def go_on(first: Future[list[int]]) -> None:
        found.append((first.result(), topic.append([duramen.Record(b"2")])))
        log.close()
        closed.set()

    topic.append_async([duramen.Record(b"1")]).add_done_callback(go_on)
    assert closed.wait(60)
    assert found == [([0], [1])]


def test_what_a_future_calls_back_may_close_a_log_that_is_being_closed(tmp_path: Path) -> None:
    """Who closed it waited for the callback, and the callback for who closed it."""
    log = duramen.open(str(tmp_path / "log"))
    topic = log.topic("t")
    closing = threading.Thread(target=log.close, daemon=True)
    closed = threading.Event()

    def close(_: Future[list[int]]) -> None:
        closing.start()
        while not log._closed:  # until the other thread is at it
            time.sleep(0.01)
        log.close()
        closed.set()

    topic.append_async([duramen.Record(b"1")]).add_done_callback(close)
    assert closed.wait(60)
    closing.join(60)
    assert not closing.is_alive()


def test_who_comes_while_a_log_closes_is_told_that_it_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A topic was refused for want of a node to hold it, which is how a stopping node looks from inside."""
    log = duramen.open(str(tmp_path / "log"))
    real, late = EmbeddedLog._call, []

    def call(self: EmbeddedLog, command: Any) -> Any:
        answer = real(self, command)
        with pytest.raises(duramen.DuramenError) as refused:
            log.topic("late")
        late.append(refused.type)
        return answer

    monkeypatch.setattr(EmbeddedLog, "_call", call)
    log.close()
    assert late == [duramen.ClosedError]


def test_threads_that_ask_for_a_new_topic_at_the_same_time_can_all_use_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who came while its partitions were being made got a topic of which each append said that it was deleted."""
    making, go_on = threading.Event(), threading.Event()
    real = CreateLogsJob.run

    def slow(job: CreateLogsJob) -> None:
        making.set()
        assert go_on.wait(60)
        real(job)

    with duramen.open(tmp_path) as log:
        monkeypatch.setattr(CreateLogsJob, "run", slow)
        stored: list[int] = []

        def work() -> None:
            stored.extend(log.topic("t", partitions=20).append([duramen.Record(b"v")], partition=19))

        threads = [threading.Thread(target=work) for _ in range(2)]
        threads[0].start()
        assert making.wait(60)
        threads[1].start()
        threading.Timer(0.5, go_on.set).start()
        for thread in threads:
            thread.join(60)
        assert sorted(stored) == [0, 1]


def test_a_topic_that_is_deleted_while_it_is_made_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It ended in a KeyError."""
    real = Controller.create

    def create(self: Controller, topics: Any, done: Any) -> None:
        real(self, topics, done)
        self.host.submit(DeleteTopics((TopicRef("t"),)), lambda answer: None)

    with duramen.open(tmp_path) as log:
        monkeypatch.setattr(Controller, "create", create)
        with pytest.raises(duramen.KafkaError, match="deleted") as refused:
            log.topic("t")
        assert refused.value.code is duramen.ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        monkeypatch.undo()
        assert log.topic("t").append([duramen.Record(b"v")]) == [0]


def test_names_are_listed_once_while_topics_come_and_go(tmp_path: Path) -> None:
    """A name that was inserted before the one just listed had that one listed twice."""
    listed: list[list[str]] = []
    done = threading.Event()
    with duramen.open(tmp_path) as log:
        for number in range(50):
            log.topic(f"m{number}")

        def look() -> None:
            while not done.is_set():
                listed.append(log.topics())

        looking = threading.Thread(target=look)
        before = sys.getswitchinterval()
        sys.setswitchinterval(1e-6)
        try:
            looking.start()
            for number in range(200, 100, -1):
                log.topic(f"a{number}")
        finally:
            sys.setswitchinterval(before)
            done.set()
            looking.join()
    assert all(names == sorted(set(names)) for names in listed)


@pytest.mark.parametrize("rows", [1, 2])
def test_a_refusal_of_append_async_comes_with_its_future(tmp_path: Path, rows: int) -> None:
    """That of a single batch was raised, of several it was in the future."""
    with duramen.open(tmp_path) as log:
        topic = log.topic("t")
        log.delete_topic("t")
        future = topic.append_async([duramen.Record(b"x" * 600_000)] * rows)
        with pytest.raises(duramen.KafkaError, match="was deleted"):
            future.result(60)


def test_looking_up_a_time_holds_up_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It read from the disk in a turn: on a cold one every append waited for it."""
    real, appended = TimeLookup.run, []
    with duramen.open(tmp_path) as log:
        topic = log.topic("t")
        topic.append([duramen.Record(b"v", timestamp_ms=1)])

        def run(self: TimeLookup) -> Any:
            thread = threading.Thread(target=lambda: appended.append(topic.append([duramen.Record(b"v")], timeout=60)))
            thread.start()
            thread.join(60)
            return real(self)

        monkeypatch.setattr(TimeLookup, "run", run)
        assert topic.offset_at(0, 0) == 0
        assert appended == [[1]]


def test_a_directory_of_a_cluster_of_several_nodes_is_not_opened(tmp_path: Path) -> None:
    path = tmp_path / "log"
    duramen.open(path).close()
    (path / "duramen-cluster").write_bytes(b"")
    with pytest.raises(StorageError, match="belongs to a cluster of several nodes; use a client of that cluster"):
        duramen.open(path)
    with pytest.raises(ConfigError, match="one directory for everything"):
        duramen.open(tmp_path / "other", {"metadata.log.dir": str(tmp_path / "metadata")})
