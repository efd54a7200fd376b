"""One partition as a stream: appends under conditions, closing, and stretches of its log with their batches."""

from __future__ import annotations

from typing import NamedTuple

from duramen.embedded.log import Topic
from duramen.embedded.log_chunk import LogChunk
from duramen.embedded.threads import ThreadResult, waiting_time
from duramen.errors import ErrorCode, KafkaError, StreamClosedError
from duramen.partition.replica.conditional_append import (
    NO_CONDITION,
    ConditionalBatch,
    ConditionalResult,
    append_conditionally,
)
from duramen.partition.replica.partition import READ_COMMITTED

_PARTITION = 0


class TopicStreamAnswer(NamedTuple):
    """What became of an append, and how the log stands. code NONE: it is stored.

    base_offset: of the batch, -1 where there is none. end_offset: of the log, and where a batch was stored the one
    behind it. leader_epoch: of the batch. stable: on stable storage, not in the page cache alone.
    """

    code: ErrorCode
    message: str
    base_offset: int
    end_offset: int
    leader_epoch: int
    stable: bool
    copies: int
    closed: bool


class TopicStream:
    """Partition 0 of a topic that has no other. Safe from several threads, as its log is."""

    def __init__(self, topic: Topic) -> None:
        self._topic = topic

    def append(
        self,
        batch: bytearray | None,
        expected_offset: int = NO_CONDITION,
        *,
        close: bool = False,
        timeout_s: float | None = None,
    ) -> TopicStreamAnswer:
        """Append one finished batch, all of it or nothing, and say what became of it; a refusal is an answer, too.

        batch None: close alone, or (not `close`) ask how the log stands. expected_offset: where the log has to end.
        TimeoutError after `timeout_s`: it may be stored all the same. Raises what `Topic.append` does for a topic that
        is gone or may not be written, and for a log that is closed.
        """
        topic = self._topic
        topic._turn.check_may_wait()
        topic._check_own()
        stored: ThreadResult[TopicStreamAnswer | Exception] = ThreadResult()

        def begin() -> None:
            partition = topic._partition(_PARTITION)

            def done(result: ConditionalResult | KafkaError) -> None:
                log = partition.log
                code, message = ErrorCode.NONE, ""
                base, end, epoch = -1, log.end_offset, partition.leader_epoch
                if isinstance(result, KafkaError):
                    is_closed = isinstance(result, StreamClosedError)
                    code, message = ErrorCode.STREAM_CLOSED if is_closed else result.code, result.message
                else:
                    base, end, epoch = result.base_offset, result.end_offset, result.leader_epoch
                closed = log.producers.closed_at is not None
                copies = len(partition.replication.isr)
                stored.give(TopicStreamAnswer(code, message, base, end, epoch, log.stable, copies, closed))

            view = None if batch is None else memoryview(batch)
            append_conditionally(partition, ConditionalBatch(view, expected_offset, close), topic._turn.wall_ms(), done)
            topic._log._store.commit_soon()

        topic._turn.post(begin, stored.give)
        answer = stored.wait(waiting_time(timeout_s))
        if isinstance(answer, Exception):
            raise answer
        return answer

    def read(self, offset: int) -> LogChunk:
        """Whole committed batches from the one with `offset`; without data at the end. Errors as `Topic.read`."""
        return self._topic._chunk(_PARTITION, offset, READ_COMMITTED)

    def wait(self, bound: int) -> None:
        """Until more can be read than what lies before `bound`. ClosedError when the log is closed meanwhile."""
        self._topic._wait(_PARTITION, bound, READ_COMMITTED)
