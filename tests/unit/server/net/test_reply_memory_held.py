"""Replies of one connection that nobody takes, or that wait for one before them: they stay within a bound."""

from __future__ import annotations

from typing import Any

import pytest
from tests.worlds.broker_world import InProcess, Line

from duramen.server.net.reply_memory import MOST_UNSENT_BYTES
from duramen.wire.frame import part_size
from duramen.wire.messages import API

RECORDS = 36
RECORD_BYTES = 25_000
FETCHES = 200


@pytest.fixture
def old_data() -> InProcess:
    """A node with megabytes of which nothing is in memory any more, and a topic without records."""
    server = InProcess()
    line = server.connect()
    line.create_topic("old", segment_bytes="1048576")
    line.create_topic("quiet")
    for _ in range(8):
        assert line.produce("old", *[b"x" * RECORD_BYTES] * RECORDS).error_code == 0
    server.pass_ms(70_000)  # a checkpoint
    server.forget_cache()
    return server


def held_bytes(server: InProcess, line: Line) -> int:
    connection = next(each for each in server.broker.acceptor.connections if each.transport is line)
    complete = [part for request in connection.pending for part in request.parts or ()]
    return sum(map(part_size, complete)) + connection.outbox.size


def replies(line: Line) -> list[Any]:
    found = []
    while (reply := line.answer(1, 12)) is not None:
        found.append(reply)
    return found


def test_replies_behind_a_long_poll_are_memory_and_bounded(old_data: InProcess) -> None:
    server = old_data
    line = server.connect()
    line.ask_fetch("quiet", 0, wait=60_000)
    for _ in range(FETCHES):
        line.ask_fetch("old", 0)
    server.run()
    server.pass_ms(30_000)
    assert replies(line) == [], "the first of them has no reply yet"
    assert MOST_UNSENT_BYTES < held_bytes(server, line) < 2 * MOST_UNSENT_BYTES
    server.pass_ms(60_000)
    answers = replies(line)
    assert len(answers) == 1 + FETCHES, "then all of them, in their order"
    assert len(answers[0].responses[0].partitions[0].records) == 0
    assert all(len(answer.responses[0].partitions[0].records) >= RECORD_BYTES for answer in answers[1:])
    assert held_bytes(server, line) == 0


def test_parked_fetches_that_end_together_bring_no_more_than_their_client_takes(old_data: InProcess) -> None:
    server = old_data
    line = server.connect()
    line.ask_fetch("quiet", 0, wait=60_000)
    request = API[1].request
    for number in range(FETCHES):
        part = request.FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 20)
        topics = [request.FetchTopic(topic="old", partitions=[part])]
        line.ask(1, 12, max_wait_ms=500 + number, min_bytes=1 << 30, topics=topics)
    server.run()
    server.pass_ms(40_000)
    assert held_bytes(server, line) < 2 * MOST_UNSENT_BYTES
    server.pass_ms(60_000)
    assert len(replies(line)) == 1 + FETCHES


def test_bytes_sent_are_counted_once_however_often_a_parked_fetch_looked() -> None:
    server = InProcess()
    producer, consumer = server.connect(), server.connect()
    producer.create_topic("t")
    request = API[1].request
    part = request.FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 20)
    topics = [request.FetchTopic(topic="t", partitions=[part])]
    consumer.ask(1, 12, max_wait_ms=5000, min_bytes=1 << 20, topics=topics)
    for _ in range(20):
        assert producer.produce("t", b"x" * 100).error_code == 0
    server.pass_ms(6000)
    partition = server.broker.partitions.find("t", 0)
    assert partition is not None
    assert partition.bytes_out == len(consumer.fetched().records) == partition.bytes_in


def test_what_the_node_writes_itself_is_counted_as_appended() -> None:
    server = InProcess()
    line = server.connect()
    line.create_topic("t")
    partition = server.broker.controller.partition
    assert partition.bytes_in == partition.log.size > 0
