"""Fetch as clients of several ages ask for it: sessions, topic ids, limits, waiting, isolation and divergence."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from itertools import count
from typing import Any

import pytest
from rawclient import DELETE_RECORDS, DELETE_TOPICS, FETCH, METADATA, Raw, batch, frame
from tests.worlds.served_node import Served

from duramen.errors import ErrorCode
from duramen.wire.batch import batches
from duramen.wire.messages import API

REQUEST = API[FETCH].request
VERSIONS = [4, 7, 11, 12, 13, 17, 18]
NAMES = (f"fetched-{number}" for number in count())


@pytest.fixture
def raw(served: Served) -> Iterator[Raw]:
    with Raw(served.port) as client:
        yield client


class Topic:
    """A topic by name and id, with the offsets of its batches."""

    def __init__(self, raw: Raw, partitions: int = 1, **configs: str) -> None:
        self.name = next(NAMES)
        self.id = raw.create_topic(self.name, partitions, **configs)

    def wanted(self, *parts: Any) -> Any:
        return REQUEST.FetchTopic(topic=self.name, topic_id=self.id, partitions=list(parts))

    def forgotten(self, *partitions: int) -> Any:
        return REQUEST.ForgottenTopic(topic=self.name, topic_id=self.id, partitions=list(partitions))


def part(partition: int = 0, offset: int = 0, most: int = 1 << 20, **fields: Any) -> Any:
    return REQUEST.FetchPartition(partition=partition, fetch_offset=offset, partition_max_bytes=most, **fields)


def fetch(raw: Raw, version: int, *topics: Any, wait: int = 0, enough: int = 1, **fields: Any) -> Any:
    return raw.call(FETCH, version, max_wait_ms=wait, min_bytes=enough, topics=list(topics), **fields)


def only(reply: Any) -> Any:
    """The one partition of a reply."""
    assert reply.error_code == 0
    ((entry,),) = [topic.partitions for topic in reply.responses]
    return entry


def offsets(entry: Any) -> list[int]:
    data = memoryview(entry.records or b"")
    found = list(batches(data))
    assert sum(header.size for _, header in found) == len(data), "whole batches only"
    return [header.base_offset for _, header in found]


@pytest.mark.parametrize("version", VERSIONS)
def test_whole_batches_from_the_one_that_holds_the_offset(raw: Raw, version: int) -> None:
    topic = Topic(raw)
    for _ in range(3):
        raw.produce(topic.name, [b"a", b"b"])
    entry = only(fetch(raw, version, topic.wanted(part(offset=3))))
    assert (entry.error_code, entry.high_watermark, entry.last_stable_offset) == (0, 6, 6)
    assert offsets(entry) == [2, 4]
    assert entry.aborted_transactions is None
    entry = only(fetch(raw, version, topic.wanted(part(offset=0)), isolation_level=1))
    assert (offsets(entry), entry.aborted_transactions) == ([0, 2, 4], [])
    entry = only(fetch(raw, version, topic.wanted(part(offset=6))))
    assert (offsets(entry), entry.error_code, entry.high_watermark) == ([], 0, 6)
    for offset in (7, -1, 2**62):
        entry = only(fetch(raw, version, topic.wanted(part(offset=offset))))
        assert (entry.error_code, entry.high_watermark) == (ErrorCode.OFFSET_OUT_OF_RANGE, -1)


@pytest.mark.parametrize("version", VERSIONS)
def test_the_first_batch_comes_however_little_was_asked_for(raw: Raw, version: int) -> None:
    """KIP-74: for the whole request, not for each partition."""
    topic = Topic(raw, partitions=3)
    size = len(batch(b"x" * 1000))
    for partition in range(3):
        for _ in range(3):
            raw.produce(topic.name, [b"x" * 1000], partition=partition)
    parts = [part(number, most=10) for number in range(3)]
    reply = fetch(raw, version, topic.wanted(*parts))
    assert [offsets(entry) for entry in reply.responses[0].partitions] == [[0], [], []]
    parts = [part(number) for number in range(3)]
    reply = fetch(raw, version, topic.wanted(*parts), max_bytes=4 * size + 10)
    assert [offsets(entry) for entry in reply.responses[0].partitions] == [[0, 1, 2], [0], []]
    assert all(entry.high_watermark == 3 for entry in reply.responses[0].partitions)
    reply = fetch(raw, version, topic.wanted(*parts), max_bytes=0)
    assert [offsets(entry) for entry in reply.responses[0].partitions] == [[0], [], []]


def test_waiting_for_enough_and_for_no_more_than_may_be_sent(raw: Raw, served: Served) -> None:
    topic = Topic(raw)
    began = time.monotonic()
    assert offsets(only(fetch(raw, 12, topic.wanted(part()), wait=300))) == []
    assert 0.25 < time.monotonic() - began < 50
    size = len(batch(b"x" * 1000))

    def produce() -> None:
        with Raw(served.port) as other:
            for _ in range(3):
                time.sleep(0.15)
                other.produce(topic.name, [b"x" * 1000])

    producer = threading.Thread(target=produce)
    producer.start()
    began = time.monotonic()
    assert offsets(only(fetch(raw, 12, topic.wanted(part()), wait=80000, enough=size + 1))) == [0, 1]
    assert time.monotonic() - began < 50
    producer.join()
    began = time.monotonic()
    assert offsets(only(fetch(raw, 12, topic.wanted(part()), wait=80000, enough=1 << 30, max_bytes=2 * size))) == [0, 1]
    assert time.monotonic() - began < 50


def test_an_error_is_told_at_once_however_long_the_client_would_wait(raw: Raw) -> None:
    topic = Topic(raw)
    nowhere = REQUEST.FetchTopic(topic="no-such-topic", topic_id=b"x" * 16, partitions=[part()])
    began = time.monotonic()
    reply = fetch(raw, 12, topic.wanted(part(), part(9)), nowhere, wait=80000)
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert [entry.error_code for found in reply.responses for entry in found.partitions] == [0, unknown, unknown]
    reply = fetch(raw, 13, topic.wanted(part()), nowhere, wait=80000)
    codes = [entry.error_code for found in reply.responses for entry in found.partitions]
    assert codes == [0, ErrorCode.UNKNOWN_TOPIC_ID]
    assert time.monotonic() - began < 50


@pytest.mark.parametrize("version", [9, 12, 13, 18])
def test_leader_epochs_are_checked(raw: Raw, version: int) -> None:
    topic = Topic(raw)
    raw.produce(topic.name, [b"a"])
    reply = raw.call(METADATA, 12, topics=[API[METADATA].request.MetadataRequestTopic(name=topic.name)])
    epoch = reply.topics[0].partitions[0].leader_epoch
    codes = [
        only(fetch(raw, version, topic.wanted(part(current_leader_epoch=known)))).error_code
        for known in (-1, epoch, epoch + 1)
    ]
    assert codes == [0, 0, ErrorCode.UNKNOWN_LEADER_EPOCH]


@pytest.mark.parametrize("version", [12, 13, 18])
def test_a_reader_with_another_history_is_told_where_it_parts_from_ours(raw: Raw, version: int) -> None:
    topic = Topic(raw)
    raw.produce(topic.name, [b"a", b"b"])
    header = next(batches(memoryview(only(fetch(raw, version, topic.wanted(part()))).records)))[1]
    epoch = header.leader_epoch
    same = only(fetch(raw, version, topic.wanted(part(offset=2, last_fetched_epoch=epoch))))
    assert (same.error_code, same.diverging_epoch.end_offset) == (0, -1)
    ahead = only(fetch(raw, version, topic.wanted(part(offset=5, last_fetched_epoch=epoch)), wait=80000))
    assert (ahead.error_code, ahead.diverging_epoch.epoch, ahead.diverging_epoch.end_offset) == (0, epoch, 2)
    assert not ahead.records
    later = only(fetch(raw, version, topic.wanted(part(offset=2, last_fetched_epoch=epoch + 3))))
    assert later.error_code == ErrorCode.OFFSET_OUT_OF_RANGE


# ---- sessions (KIP-227) ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [7, 11, 12, 13, 18])
def test_a_session_tells_what_changed(raw: Raw, version: int) -> None:
    topic = Topic(raw, partitions=3)
    raw.produce(topic.name, [b"a"], partition=1)
    first = fetch(raw, version, topic.wanted(*(part(number) for number in range(3))), session_epoch=0)
    session = first.session_id
    assert session > 0
    assert [entry.partition_index for entry in first.responses[0].partitions] == [0, 1, 2]

    def ask(epoch: int, *wanted: Any, forget: tuple[int, ...] = (), **fields: Any) -> Any:
        topics = [topic.wanted(*wanted)] if wanted else []
        forgotten = [topic.forgotten(*forget)] if forget else []
        return fetch(
            raw, version, *topics, session_id=session, session_epoch=epoch, forgotten_topics_data=forgotten, **fields
        )

    reply = ask(1, part(1, offset=1))
    assert (reply.error_code, reply.session_id, reply.responses) == (0, session, [])
    raw.produce(topic.name, [b"b"], partition=2)
    entry = only(ask(2))
    assert (entry.partition_index, offsets(entry)) == (2, [0])
    entry = only(ask(3))
    assert offsets(entry) == [0], "the client did not say that it has it"
    assert ask(4, part(2, offset=1)).responses == []
    assert ask(5, forget=(2,)).responses == []
    raw.produce(topic.name, [b"c"], partition=2)
    assert ask(6).responses == []
    entry = only(ask(7, part(0, offset=77)))
    assert entry.error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    assert only(ask(8)).error_code == ErrorCode.OFFSET_OUT_OF_RANGE, "an error is repeated until it is dealt with"
    assert only(ask(9, part(0, offset=0))).high_watermark == 0
    assert ask(10).responses == []
    # A raised log start is a change of its own.
    records = API[DELETE_RECORDS].request
    cut = records.DeleteRecordsPartition(partition_index=1, offset=1)
    raw.call(DELETE_RECORDS, 2, topics=[records.DeleteRecordsTopic(name=topic.name, partitions=[cut])], timeout_ms=5000)
    assert only(ask(11)).log_start_offset == 1
    # Forgetting everything ends the session.
    assert ask(12, forget=(0, 1)).session_id == 0
    assert ask(13).error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND


def test_session_errors(raw: Raw) -> None:
    topic = Topic(raw)
    session = fetch(raw, 12, topic.wanted(part()), session_epoch=0).session_id
    assert fetch(raw, 12, session_id=session, session_epoch=2).error_code == ErrorCode.INVALID_FETCH_SESSION_EPOCH
    assert fetch(raw, 12, session_id=session + 1, session_epoch=1).error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert fetch(raw, 13, session_id=session, session_epoch=1).error_code == ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR
    final = fetch(raw, 12, topic.wanted(part()), session_id=session, session_epoch=-1)
    assert (final.error_code, final.session_id) == (0, 0)
    assert fetch(raw, 12, session_id=session, session_epoch=1).error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND


def test_a_parked_session_wakes_for_any_of_its_partitions(raw: Raw, served: Served) -> None:
    topic = Topic(raw, partitions=20)
    session = fetch(raw, 13, topic.wanted(*(part(number) for number in range(20))), session_epoch=0).session_id
    raw.send(
        frame(
            FETCH,
            13,
            REQUEST.new(max_wait_ms=90_000, min_bytes=1, topics=[], session_id=session, session_epoch=1),
            4242,
        )
    )
    time.sleep(0.1)
    with Raw(served.port) as other:
        other.produce(topic.name, [b"x"], partition=17)
    began = time.monotonic()
    correlation_id, reply = raw.reply(FETCH, 13)
    assert correlation_id == 4242
    assert only(reply).partition_index == 17
    assert time.monotonic() - began < 50


def delete(raw: Raw, name: str) -> None:
    state = API[DELETE_TOPICS].request.DeleteTopicState(name=name)
    reply = raw.call(DELETE_TOPICS, 6, topics=[state], timeout_ms=5000)
    assert reply.responses[0].error_code == 0


def test_a_topic_that_is_deleted_and_made_again_under_a_session(raw: Raw) -> None:
    topic = Topic(raw)
    by_id = fetch(raw, 13, topic.wanted(part()), session_epoch=0).session_id
    by_name = fetch(raw, 12, topic.wanted(part()), session_epoch=0).session_id
    never = REQUEST.FetchTopic(topic_id=b"n" * 16, partitions=[part()])
    unknown = fetch(raw, 13, never, session_epoch=0)
    assert only(unknown).error_code == ErrorCode.UNKNOWN_TOPIC_ID
    delete(raw, topic.name)
    gone = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert only(fetch(raw, 13, session_id=by_id, session_epoch=1)).error_code == gone
    assert only(fetch(raw, 12, session_id=by_name, session_epoch=1)).error_code == gone
    assert only(fetch(raw, 13, topic.wanted(part()))).error_code == ErrorCode.UNKNOWN_TOPIC_ID
    raw.create_topic(topic.name)
    for epoch in (2, 3):
        again = fetch(raw, 13, session_id=by_id, session_epoch=epoch)
        assert only(again).error_code == ErrorCode.INCONSISTENT_TOPIC_ID
    assert only(fetch(raw, 12, session_id=by_name, session_epoch=2)).error_code == 0
    again = fetch(raw, 13, session_id=unknown.session_id, session_epoch=1)
    assert only(again).error_code == ErrorCode.UNKNOWN_TOPIC_ID


def test_a_parked_fetch_is_answered_when_its_topic_goes(raw: Raw, served: Served) -> None:
    topic = Topic(raw)
    raw.send(frame(FETCH, 12, REQUEST.new(max_wait_ms=90_000, min_bytes=1, topics=[topic.wanted(part())]), 5))
    time.sleep(0.1)
    began = time.monotonic()
    with Raw(served.port) as other:
        delete(other, topic.name)
    assert only(raw.reply(FETCH, 12)[1]).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert time.monotonic() - began < 50
