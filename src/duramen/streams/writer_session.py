"""A writer from its opening on: records that are gathered into batches, and each batch once, whoever else writes."""

from __future__ import annotations

import os
import socket
from typing import Final, NamedTuple

from duramen.dlsn import Dlsn, dlsn_at
from duramen.errors import ClosedError, DeadlineError, DuramenError, NetworkError
from duramen.model import MOST_ID_CHARACTERS, named_producer_id
from duramen.streams.errors import OtherTxidsError, StreamEndMovedError, WriterFencedError
from duramen.streams.link import AppendTerms, StreamKind, WriterTurn
from duramen.streams.receipt import Receipt, receipt_of
from duramen.streams.records import NewStreamRecord, Row, StreamSpot
from duramen.streams.stream_calls import MadeRows, StreamCalls, condition
from duramen.wire.batch import MAX_SEQUENCE
from duramen.wire.conditional_answer import ConditionalAnswer

WRITER_BYTES: Final = 512 * 1024
_RECORDS_MAX: Final = 50_000
"""Of a batch that nobody asked for: a gateway takes so many short ones in one body."""
EPOCH_MAX: Final = (1 << 15) - 1


class WriterWish(NamedTuple):
    """What a writer is to be; see `Stream.writer`."""

    expected_position: Dlsn | int | None = None
    max_bytes: int = WRITER_BYTES
    name: str | None = None
    exclusive: bool = False
    epoch: int | None = None
    sequence: int = 0

    def check(self) -> None:
        """TypeError, ValueError for what cannot be."""
        if self.max_bytes < 1:
            raise ValueError(f"max_bytes is at least 1, not {self.max_bytes}")
        condition(self.expected_position)
        if self.name is not None and not 0 < len(self.name) <= MOST_ID_CHARACTERS:
            raise ValueError(f"a writer's name has 1 to {MOST_ID_CHARACTERS} characters, not {len(self.name)}")
        if self.exclusive and self.expected_position is not None:
            raise TypeError("an exclusive writer has nobody beside it: leave out expected_position")
        if (self.exclusive or self.name is None) and (self.epoch is not None or self.sequence):
            raise TypeError("epoch and sequence belong to a named writer that is not exclusive")
        if self.epoch is None and self.sequence:
            raise TypeError("a sequence goes on in an epoch: give that, too")
        if self.epoch is not None and not 0 <= self.epoch <= EPOCH_MAX:
            raise ValueError(f"an epoch is 0 to {EPOCH_MAX}, not {self.epoch}")
        if not 0 <= self.sequence <= MAX_SEQUENCE:
            raise ValueError(f"a sequence is 0 to {MAX_SEQUENCE}, not {self.sequence}")


async def open_session(calls: StreamCalls, wish: WriterWish) -> WriterSession:
    """A writer. An exclusive one has fenced all others when this returns; a named one fences by its first batch."""
    wish.check()
    if wish.exclusive:
        name = wish.name or f"{socket.gethostname()}/{os.getpid()}"
        return WriterSession(calls, wish, WriterTurn(name, await calls.open_writer(name), 0, 0))
    if wish.name is None:
        return WriterSession(calls, wish, None)
    producer_id = named_producer_id(wish.name)
    if wish.epoch is not None:
        return WriterSession(calls, wish, WriterTurn(wish.name, producer_id, wish.epoch, wish.sequence))
    epoch = (await calls.progress(wish.name, producer_id)).epoch + 1
    if epoch > EPOCH_MAX:
        raise WriterFencedError(
            f"{calls.name}: the writer {wish.name!r} had its last epoch; take another name", epoch - 1
        )
    return WriterSession(calls, wish, WriterTurn(wish.name, producer_id, epoch, 0))


class WriterSession:
    """turn: who writes, and the number of the next batch; None for a writer without a name.

    A batch with a turn that got no answer stays in front of what follows, and is sent again as it was. Where the first
    one of an epoch that was begun here was there already, the next goes on in an epoch of its own.
    """

    def __init__(self, calls: StreamCalls, wish: WriterWish, turn: WriterTurn | None) -> None:
        self.turn = turn
        self._calls = calls
        self._expected = wish.expected_position
        self._most = wish.max_bytes
        self._is_exclusive = wish.exclusive
        self._is_new_epoch = turn is not None and not wish.exclusive and wish.epoch is None
        self._rows: list[Row] = []
        self._kind: StreamKind | None = None
        """Of the stream that they are made for."""
        self._size = 0
        self._sent: MadeRows | None = None
        self._is_closed = False

    async def write(self, record: bytes | NewStreamRecord, txid: int | None) -> Receipt | None:
        """Gather a record; the receipt of a batch where that made it large enough."""
        self._check()
        if txid is not None:
            given = record if isinstance(record, NewStreamRecord) else NewStreamRecord(record)
            record = NewStreamRecord(given.value, given.key, given.headers, given.timestamp_ms, txid)
        (row,), kind = await self._calls.made_rows(record)
        size = len(row[0] or b"") + len(row[1] or b"") + sum(len(name) + len(value or b"") for name, value in row[2])
        is_full = self._size + size > self._most or len(self._rows) >= _RECORDS_MAX
        receipt = await self.flush() if self._rows and is_full else None
        if self._rows and kind is not None and self._kind is not None and kind.txids != self._kind.txids:
            self._is_closed = True
            raise OtherTxidsError(self._calls.name, kind.txids)
        self._rows.append(row)
        self._kind = kind
        self._size += size
        return receipt

    async def flush(self) -> Receipt | None:
        """Append what was gathered; the receipt of the last batch, None where there was none."""
        self._check()
        receipt = await self._send(self._sent) if self._sent is not None else None
        if self._rows:
            self._sent, self._rows, self._size = MadeRows(self._rows, self._kind), [], 0
            receipt = await self._send(self._sent)
        return receipt

    async def _send(self, made: MadeRows) -> Receipt:
        rows = made.rows
        self._is_closed = True  # stays so where the append fails, but where the same batch can be sent again
        try:
            answer = await self._calls.send(made, AppendTerms(condition(self._expected), writer=self.turn))
        except (DeadlineError, NetworkError):
            self._is_closed = self.turn is None
            raise
        is_shared = self._is_new_epoch and answer.duplicate
        if is_shared:
            await self._check_ours(answer, rows)
        self._is_closed = self._is_new_epoch = False
        self._sent = None
        if self.turn is not None:
            step = len(rows) if self._is_exclusive else 1
            self.turn = self.turn._replace(sequence=(self.turn.sequence + step) & MAX_SEQUENCE)
            if is_shared and self.turn.epoch < EPOCH_MAX:
                # Somebody else may have sent just the same. Its next batch would pass for ours: this epoch is left.
                self.turn = self.turn._replace(epoch=self.turn.epoch + 1, sequence=0)
                self._is_new_epoch = True
        receipt = receipt_of(answer, len(rows))
        if self._expected is not None and receipt.offset >= 0:  # else others have appended since, which is told then
            self._expected = receipt.next
        return receipt

    async def _check_ours(self, answer: ConditionalAnswer, rows: list[Row]) -> None:
        """WriterFencedError where the first batch of the epoch that was begun here is that of somebody else, who began
        the same one at the same time."""
        turn = self.turn
        assert turn is not None
        base = answer.base_offset
        is_ours = False
        if base >= 0:
            stretch = await self._calls.fetch(StreamSpot(base, dlsn_at(base, base, answer.leader_epoch)))
            found = [record for batch in stretch.batches[:1] for record in batch.records][: len(rows)]
            has_own_times = answer.log_append_time_ms < 0 and await self._calls.txid_kind() != "assigned"
            is_ours = len(found) == len(rows) and all(
                (record.key, record.value) == row[:2] and (record.timestamp_ms == row[3] or not has_own_times)
                for record, row in zip(found, rows, strict=True)
            )
        if not is_ours:
            text = f"{self._calls.name}: another writer {turn.name!r} has begun epoch {turn.epoch} at the same time"
            raise WriterFencedError(text, turn.epoch)

    async def close_stream(self) -> None:
        """Flush, and close the stream for ever, unless somebody else writes by now."""
        await self.flush()
        turn = self.turn
        if turn is None or self._is_exclusive:
            await self._calls.send(None, AppendTerms(condition(self._expected), close=True, writer=turn))
        else:
            while not await self._closed_unless_fenced(turn):
                pass
        self._is_closed = True

    async def _closed_unless_fenced(self, turn: WriterTurn) -> bool:
        """A close has no number. So the name's epoch is asked for, and the stream closed where it ended before that: a
        newer epoch begins with an append, and then the end is another: False.
        """
        tail = await self._calls.state()
        if tail.closed:
            return True
        known = await self._calls.progress(turn.name, turn.producer_id)
        if known.epoch > turn.epoch:
            text = f"{self._calls.name}: the writer {turn.name!r} is at epoch {known.epoch} by now"
            raise WriterFencedError(text, known.epoch)
        try:
            await self._calls.close_stream(tail.end)
        except StreamEndMovedError:
            return False
        return True

    async def close(self, *, flushes: bool) -> None:
        """End it: append what is left if that is wanted, and give an exclusive stream up."""
        if flushes and not self._is_closed:
            await self.flush()
        was_open, self._is_closed = not self._is_closed, True
        if self._is_exclusive and self.turn is not None and was_open:
            try:
                await self._calls.release_writer(self.turn.name, self.turn.producer_id)
            except DuramenError:
                if flushes:
                    raise

    def _check(self) -> None:
        if self._is_closed:
            raise ClosedError("this writer has ended; open another one")
