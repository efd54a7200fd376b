"""Appends to a stream under conditions, and its closing. The leader decides all of them; nothing is kept here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from duramen.client.aio import AsyncCluster
from duramen.client.protocol import conditional_append as conditional
from duramen.client.protocol.conditional_append import CONDITIONAL_APPEND, ConditionalAnswer
from duramen.client.protocol.producers import ProducerProgress, progress_in
from duramen.dlsn import ANYWHERE, NOWHERE, Dlsn, LogEnd, expected_end
from duramen.errors import ErrorCode
from duramen.gateway.edge.problem import ProblemError
from duramen.gateway.streams.stream_sequences import SEQUENCE_HEADER, StreamSequences
from duramen.gateway.streams.stream_topics import NO_TXIDS, StreamInfo
from duramen.gateway.streams.writer_headers import (
    EPOCH,
    EXPECTED_SEQ,
    NEXT_SEQ,
    RECEIVED_SEQ,
    NamedWriter,
    OpenedWriter,
)
from duramen.gateway.writes.partition_writes import PartitionWrites, WrittenShare, check_stored
from duramen.gateway.writes.writer_batches import WriterBatches
from duramen.model import NO_PRODUCER_ID
from duramen.wire.batch import NewRecord, build_batch

CLOSED_HEADER: Final = "stream-closed"


class AppendWish(NamedTuple):
    """What a POST asks for. records: none to close alone; expected: where the stream has to end; sequence:
    Stream-Seq; txid: of the first record, where the application gives them."""

    records: Sequence[NewRecord]
    close: bool = False
    expected: Dlsn | None = None
    sequence: bytes | None = None
    writer: NamedWriter | OpenedWriter | None = None
    txid: int | None = None

    @property
    def is_plain(self) -> bool:
        """Whether it asks for an append without any condition: it may leave with others."""
        return bool(self.records) and self == AppendWish(self.records, txid=self.txid)

    @property
    def is_unconditional(self) -> bool:
        """Whether a writer that names itself asks for no more than an append."""
        return bool(self.records) and self.writer is not None and self == AppendWish(self.records, writer=self.writer)


class EndMovedError(Exception):
    """The stream ends elsewhere than was expected, or `diverged`: there, in another history. end: the log's offset."""

    def __init__(self, end: int, *, diverged: bool = False) -> None:
        super().__init__(f"the log ends at {end}")
        self.end = end
        self.diverged = diverged


class StreamAppends:
    """Appends for clients. timeout_ms: how long a leader may take."""

    def __init__(
        self,
        cluster: AsyncCluster,
        writes: PartitionWrites,
        writer_batches: WriterBatches,
        timeout_ms: int,
    ) -> None:
        self._cluster = cluster
        self._writes = writes
        self._writer_batches = writer_batches
        self._timeout_ms = timeout_ms
        self._sequences = StreamSequences(cluster)

    async def append_plain(self, info: StreamInfo, records: Sequence[NewRecord]) -> WrittenShare:
        """Append without a condition, all or none, in one batch with what others append. Problem."""
        return await self._writes.write(info.partition, info.topic_id, records)

    async def append(self, info: StreamInfo, wish: AppendWish) -> ConditionalAnswer:
        """Append, close, or both. EndMovedError where `expected` does not hold; Problem 403, 409, 400; KafkaError.

        A batch of a named writer that is there already is answered before any condition is looked at.
        """
        expected = ANYWHERE if wish.expected is None else expected_end(wish.expected)
        if wish.sequence is not None and wish.records:
            return await self._in_sequence(info, wish, wish.sequence, expected)
        if wish.close and not wish.records and isinstance(wish.writer, NamedWriter):
            return await self._close_as(info, wish.writer, expected)
        if wish.is_unconditional and info.txid == NO_TXIDS:
            stored = await self._writer_batches.write(info.partition, info.topic_id, _batch(wish))
            if stored is not None:
                return stored
        answer = await self._send(info, wish, expected)
        if _was_stored(answer, wish):
            # Beyond the last five batches the leader refuses it; what it asks next waits until all is committed.
            found = await self._send(info, AppendWish([]), ANYWHERE)
            return found._replace(duplicate=True, expected_sequence=answer.expected_sequence)
        return _granted(answer, wish)

    async def _in_sequence(
        self, info: StreamInfo, wish: AppendWish, sequence: bytes, expected: LogEnd
    ) -> ConditionalAnswer:
        """Append where the last Stream-Seq is a smaller one: at the end up to which that is known."""
        async with self._sequences.of(info) as last:
            while True:
                if last.sequence is not None and sequence <= last.sequence:
                    await self._refuse_unless_stored(info, wish)
                    now = _end_of(await self._send(info, AppendWish([]), ANYWHERE))
                    if now != last.end:  # what was read may have been lost
                        await self._sequences.read_on(info, last, now)
                    if last.sequence is None or sequence > last.sequence:
                        continue
                    said = last.sequence.decode("latin-1")
                    raise ProblemError(409, "sequence", f"Stream-Seq: it is not above the last one, {said!r}")
                if last.end is not None and expected in (ANYWHERE, last.end):
                    answer = await self._send(info, wish, last.end)
                    if answer.code not in (ErrorCode.END_IS_ELSEWHERE, ErrorCode.OFFSET_OUT_OF_RANGE):
                        granted = _granted(answer, wish)
                        if not granted.duplicate:
                            last.end, last.sequence = _end_of(granted), sequence
                        return granted
                else:
                    answer = await self._send(info, AppendWish([]), ANYWHERE)
                    if _end_of(answer) == last.end:
                        return _granted(await self._send(info, wish, expected), wish)  # another end was expected
                await self._sequences.read_on(info, last, _end_of(answer))

    async def _refuse_unless_stored(self, info: StreamInfo, wish: AppendWish) -> None:
        """Problem of a named writer that comes before that of the sequence; StoredBatchError for a duplicate."""
        if wish.writer is None:
            return
        answer = await self._send(info, wish._replace(close=False), NOWHERE)
        if answer.code != ErrorCode.END_IS_ELSEWHERE:
            raise StoredBatchError(_granted(answer, wish))

    async def _close_as(self, info: StreamInfo, writer: NamedWriter, expected: LogEnd) -> ConditionalAnswer:
        """Close without a record, as a named writer that is not fenced.

        A close alone carries no sequence. So the writer's state is asked for, and the stream closed where it ended
        before that: a newer epoch can only begin with an append, and then the end is another.
        """
        nothing = AppendWish([])
        while True:
            before = await self._send(info, nothing, ANYWHERE)
            if before.closed:
                return before
            if expected.offset not in (ANYWHERE.offset, before.end_offset):
                raise EndMovedError(before.end_offset)
            _check_turn(writer, await self.progress(info, writer.producer_id))
            end = _end_of(before) if expected == ANYWHERE else expected
            answer = await self._send(info, nothing._replace(close=True), end)
            if answer.code != ErrorCode.END_IS_ELSEWHERE:
                return _granted(answer, nothing._replace(close=True))

    async def progress(self, info: StreamInfo, producer_id: int) -> ProducerProgress:
        """How far a writer is in this stream, by what is committed."""
        return progress_in(await self._send(info, AppendWish([]), ANYWHERE, about=producer_id))

    async def _send(
        self, info: StreamInfo, wish: AppendWish, expected: LogEnd, about: int = NO_PRODUCER_ID
    ) -> ConditionalAnswer:
        """One ConditionalAppend. OutcomeUnknownError where it may be stored and cannot be sent again."""
        writer = wish.writer
        batch = _batch(wish) if wish.records else None
        request = conditional.request(
            info.partition,
            info.topic_id,
            batch,
            expected,
            close=wish.close,
            timeout_ms=self._timeout_ms,
            producer_id=writer.producer_id if isinstance(writer, OpenedWriter) else about,
        )
        # A batch that names its writer is known when it comes twice, and to close or ask twice does no harm.
        resend = batch is None or writer is not None
        response = await self._cluster.call(
            info.partition,
            CONDITIONAL_APPEND,
            request,
            code_of=lambda response: int(response.error_code),
            resend=resend,
        )
        return conditional.parsed(response)


class StoredBatchError(Exception):
    """The batch is there already; answer: where."""

    def __init__(self, answer: ConditionalAnswer) -> None:
        super().__init__("the batch is there already")
        self.answer = answer


def _batch(wish: AppendWish) -> bytearray:
    writer = wish.writer
    rows = list(wish.records)
    if wish.sequence is not None:
        key, value, headers, timestamp = rows[0]
        rows[0] = (key, value, [*headers, (SEQUENCE_HEADER, wish.sequence)], timestamp)
    return build_batch(
        rows,
        producer_id=-1 if writer is None else writer.producer_id,
        producer_epoch=-1 if writer is None else writer.epoch,
        base_sequence=-1 if writer is None else writer.base_sequence,
    )


def _end_of(answer: ConditionalAnswer) -> LogEnd:
    """Where the log ends, as it was when that was answered."""
    return LogEnd(answer.end_offset, answer.end_epoch)


def _granted(answer: ConditionalAnswer, wish: AppendWish) -> ConditionalAnswer:
    """The answer, if it is one that something is stored."""
    writer = wish.writer
    if answer.code in (ErrorCode.END_IS_ELSEWHERE, ErrorCode.OFFSET_OUT_OF_RANGE):
        raise EndMovedError(answer.end_offset, diverged=answer.code == ErrorCode.OFFSET_OUT_OF_RANGE)
    if isinstance(writer, NamedWriter) and answer.code == ErrorCode.INVALID_PRODUCER_EPOCH:
        raise _fenced(writer, answer.writer_epoch)
    if answer.code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER:
        if isinstance(writer, NamedWriter):
            raise _gap(writer, answer.writer_epoch, answer.expected_sequence)
        if writer is not None:
            raise _out_of_turn(writer, answer.expected_sequence)
    check_stored(answer)
    return answer


def _was_stored(answer: ConditionalAnswer, wish: AppendWish) -> bool:
    """Whether the exclusive writer has stored these records before, as its sequence says."""
    writer = wish.writer
    if answer.code != ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER or not isinstance(writer, OpenedWriter) or wish.close:
        return False
    return writer.next(answer.expected_sequence) >= writer.sequence + len(wish.records)


def _out_of_turn(writer: OpenedWriter, base_sequence: int) -> ProblemError:
    number = writer.next(base_sequence)
    return ProblemError(
        409,
        "sequence",
        f"Stream-Writer-Seq: {number} has to come next, not {writer.sequence}",
        {NEXT_SEQ: str(number)},
    )


def _check_turn(writer: NamedWriter, known: ProducerProgress) -> None:
    """Problem unless it is this request's turn, as far as the writer is."""
    if writer.epoch < known.epoch:
        raise _fenced(writer, known.epoch)
    expected = known.next_sequence if writer.epoch == known.epoch else 0
    if writer.base_sequence != expected:
        raise _gap(writer, known.epoch, expected)


def _fenced(writer: NamedWriter, epoch: int) -> ProblemError:
    return ProblemError(
        403,
        "writer-fenced",
        f"Producer-Epoch: {writer.name!r} writes in epoch {epoch} by now; begin a higher one, or stop",
        {EPOCH: str(epoch)},
    )


def _gap(writer: NamedWriter, epoch: int, expected: int) -> ProblemError:
    if epoch >= 0 and writer.epoch > epoch:
        return ProblemError(400, "bad-request", "Producer-Seq: a new epoch begins with 0")
    number = writer.expected(max(0, expected))
    return ProblemError(
        409,
        "sequence",
        f"Producer-Seq: {number} has to come next, not {writer.sequence}",
        {EXPECTED_SEQ: str(number), RECEIVED_SEQ: str(writer.sequence)},
    )
