"""One partition as a stream: appends under conditions, closing, and stretches of its log with their batches."""

from __future__ import annotations

from typing import NamedTuple

from duramen.config.registry import TOPIC
from duramen.dlsn import ANYWHERE, LogEnd
from duramen.embedded.log import Topic
from duramen.embedded.log_chunk import LogChunk
from duramen.embedded.stream_writes import Writer
from duramen.embedded.threads import ThreadResult, waiting_time
from duramen.errors import ErrorCode, KafkaError
from duramen.model import NO_PRODUCER_EPOCH, NO_PRODUCER_ID
from duramen.partition.replica.conditional_append import (
    ConditionalBatch,
    ConditionalResult,
    append_conditionally,
    end_of,
    own_code,
    producer_state,
)
from duramen.partition.replica.partition import READ_COMMITTED, Partition
from duramen.wire.batch import BatchHeader, parse_header
from duramen.wire.conditional_answer import ConditionalAnswer

_PARTITION = 0


class TopicStreamState(NamedTuple):
    """How a log stands. end_offset: behind the last record that is committed; last_txid: 0 before the first, -1 where
    its records have none.
    """

    end_offset: int
    leader_epoch: int
    closed: bool
    last_txid: int


class TopicStream:
    """Partition 0 of a topic that has no other. Safe from several threads, as its log is."""

    def __init__(self, topic: Topic) -> None:
        self._topic = topic

    def append(
        self,
        batch: bytearray | None,
        expected: LogEnd = ANYWHERE,
        *,
        close: bool = False,
        about: int = NO_PRODUCER_ID,
        timeout_s: float | None = None,
    ) -> ConditionalAnswer:
        """Append one finished batch, all of it or nothing, and say what became of it; a refusal is an answer, too.

        batch None: close alone, or (not `close`) ask how the log stands. expected: where the log has to end. about: a
        producer id, of who closes an exclusive topic without a batch, or of who is asked about. TimeoutError after
        `timeout_s`: it may be stored all the same. Raises what `Topic.append` does for a topic that is gone or may not
        be written, and for a log that is closed.
        """
        topic = self._topic
        topic._turn.check_may_wait()
        topic._check_own()
        stored: ThreadResult[ConditionalAnswer | Exception] = ThreadResult()
        view = None if batch is None else memoryview(batch)
        header = None if view is None else parse_header(view)

        def begin() -> None:
            partition = topic._partition(_PARTITION)

            def done(result: ConditionalResult | KafkaError) -> None:
                stored.give(_answer(partition, header, result))

            wanted = ConditionalBatch(view, expected.offset, close, about, expected.epoch)
            append_conditionally(partition, wanted, topic._turn.wall_ms(), done)
            topic._log._store.commit_soon()

        topic._turn.post(begin, stored.give)
        answer = stored.wait(waiting_time(timeout_s))
        if isinstance(answer, Exception):
            raise answer
        return answer

    def open_writer(self, name: str) -> int:
        """Let a new producer id alone write to an exclusive topic from now on; that id. Errors: `Topic.open_writer`."""
        return self._topic.open_writer(_PARTITION, name).producer_id

    def release_writer(self, name: str, producer_id: int) -> None:
        """Give it up. Errors as `Topic.release_writer`."""
        self._topic.release_writer(_PARTITION, Writer(name, producer_id=producer_id))

    def state(self) -> TopicStreamState:
        """How the log stands now."""

        def ask() -> TopicStreamState:
            partition = self._topic._partition(_PARTITION)
            last_txid = -1 if partition.last_txid is None else partition.last_txid
            bound, epoch = partition.bound(READ_COMMITTED), partition.leader_epoch
            return TopicStreamState(bound, epoch, partition.is_ended, last_txid)

        return self._topic._take(ask)

    def txid_kind(self) -> str:
        """The topic's `duramen.txid`."""
        return self._topic._partition(_PARTITION).config.txid

    def settings(self) -> dict[str, str]:
        """The topic's settings, by Kafka's names."""
        config = self._topic._partition(_PARTITION).config
        texts = {name: setting.text(config.get(name)) for name, setting in TOPIC.items() if not setting.internal}
        return {name: text for name, text in texts.items() if text is not None}

    def read(self, offset: int) -> LogChunk:
        """Whole committed batches from the one with `offset`; without data at the end. Errors as `Topic.read`."""
        return self._topic._chunk(_PARTITION, offset, READ_COMMITTED)

    def wait(self, bound: int, timeout_s: float | None = None) -> None:
        """Until more can be read than what lies before `bound`, or `timeout_s` is over. ClosedError when the log is
        closed meanwhile."""
        self._topic._wait(_PARTITION, bound, READ_COMMITTED, timeout_s)


def _answer(
    partition: Partition, header: BatchHeader | None, result: ConditionalResult | KafkaError
) -> ConditionalAnswer:
    """What a node would answer."""
    log = partition.log
    if isinstance(result, KafkaError):
        code, message = own_code(result), result.message
        end = end_of(partition, result)
        result = ConditionalResult(-1, -1, -1, -1, end.offset, partition.leader_epoch, False, end.epoch)
    else:
        code, message = ErrorCode.NONE, ""
    expected, epoch = result.writer or (-1, NO_PRODUCER_EPOCH)
    if header is not None and header.producer_id >= 0 and (code or result.is_duplicate):
        expected, epoch = producer_state(partition, header.producer_id, header.producer_epoch)
    return ConditionalAnswer(
        code,
        message,
        result.base_offset,
        result.last_offset,
        result.end_offset,
        result.leader_epoch,
        result.is_duplicate,
        expected,
        epoch,
        partition.is_ended,
        log.stable,
        len(partition.replication.isr),
        -1 if partition.last_txid is None else partition.last_txid,
        result.append_time_ms,
        result.end_epoch,
    )
