"""What waits behind a batch that is being decoded, with an executor that runs a job when it is told to."""

from __future__ import annotations

from typing import Any

import pytest

from duramen.errors import ErrorCode, KafkaError
from duramen.model import TopicPartition
from duramen.partition.replica.rewrite_queue import MAX_QUEUED_BEHIND_REWRITE, RewriteQueue


class Pool:
    """Keeps jobs until `run`."""

    def __init__(self) -> None:
        self.jobs: list[tuple[Any, Any]] = []

    def submit(self, lane: str, job: Any, done: Any) -> None:
        self.jobs.append((job, done))

    def run(self) -> None:
        job, done = self.jobs.pop(0)
        try:
            result = job()
        except ValueError as error:
            done(None, error)
        else:
            done(result, None)


def damaged() -> bytearray:
    raise ValueError("damaged")


def test_what_waits_goes_on_in_order_until_another_batch_is_decoded() -> None:
    pool, seen = Pool(), []
    queue = RewriteQueue(TopicPartition("events", 0), pool.submit)
    queue.start(lambda: bytearray(b"one"), lambda result, error: seen.append(result))
    queue.add(lambda: queue.start(lambda: bytearray(b"two"), lambda result, error: seen.append(result)))
    queue.add(lambda: seen.append(bytearray(b"plain")))
    assert queue.is_busy
    assert not seen
    pool.run()
    assert (seen, queue.is_busy) == ([b"one"], True), "the second batch holds up what came behind it"
    pool.run()
    assert (seen, queue.is_busy) == ([b"one", b"two", b"plain"], False)


def test_a_batch_that_cannot_be_decoded_holds_up_nothing() -> None:
    pool, seen = Pool(), []
    queue = RewriteQueue(TopicPartition("events", 0), pool.submit)
    queue.start(damaged, lambda result, error: seen.append(str(error)))
    queue.add(lambda: seen.append("next"))
    pool.run()
    assert seen == ["damaged", "next"]


def test_too_much_is_refused() -> None:
    queue = RewriteQueue(TopicPartition("events", 0), Pool().submit)
    queue.start(bytearray, lambda result, error: None)
    for _ in range(MAX_QUEUED_BEHIND_REWRITE):
        queue.add(lambda: None)
    with pytest.raises(KafkaError) as refused:
        queue.add(lambda: None)
    assert refused.value.code == ErrorCode.REQUEST_TIMED_OUT
