"""One stream: appends that say where they went, reading, truncation, and closing."""

from __future__ import annotations

from duramen.dlsn import Dlsn
from duramen.streams.immediate import run
from duramen.streams.read_positions import Position
from duramen.streams.reader import Reader
from duramen.streams.receipt import Receipt
from duramen.streams.record_cursor import cursor_at
from duramen.streams.stream_calls import Records, StreamCalls
from duramen.streams.writer import StreamWriter
from duramen.streams.writer_session import WRITER_BYTES, WriterWish, open_session


class Stream:
    """One stream of a namespace; `Namespace.stream` gives it. It holds nothing that has to be closed.

    Appends go by its name, and records without a time get what the stream of the name takes. What is read is this
    stream: when it was deleted and made again, readers get PositionDivergedError, and `Namespace.stream` gives the new
    one.

    Its calls raise NoSuchStreamError where the stream is not there, DeadlineError when the time limit of the namespace
    passed (an append may be stored then), NetworkError, StorageError, and KafkaError for other refusals.
    """

    def __init__(self, calls: StreamCalls) -> None:
        self.name = calls.name
        self.topic = calls.topic
        """The Kafka topic that holds it, in its partition 0."""
        self.stream_id = calls.stream_id
        """The topic's id (hexadecimal), which one that is made later under the name does not have; "" without ids."""
        self._calls = calls

    def __repr__(self) -> str:
        return f"<duramen.streams.Stream {self.name!r}>"

    def append(self, records: Records, *, expected_position: Dlsn | int | None = None, close: bool = False) -> Receipt:
        """Store records as one batch, all of them or none, and say where once they are durable.

        records: bytes for one record's value, a NewStreamRecord, or several of either; together no larger than the
        topic's max.message.bytes. expected_position: where the stream has to end, `next` of a receipt or of a record's
        DLSN; StreamEndMovedError with the real end where it does not, PositionDivergedError where it ends there after
        another record, and nothing is stored. An offset is taken, too, and finds out nothing of records that were lost
        and replaced. close: nothing is appended after them, by anybody.
        StreamClosedError where the stream is closed, WriterFencedError where it is exclusive, TxidOutOfOrderError with
        the last transaction id where one steps back. A connection that is lost on the way never stores them twice.
        """
        return run(self._calls.append(records, expected_position, close=close))

    def writer(
        self,
        *,
        expected_position: Dlsn | int | None = None,
        max_bytes: int = WRITER_BYTES,
        name: str | None = None,
        exclusive: bool = False,
        epoch: int | None = None,
        sequence: int = 0,
    ) -> StreamWriter:
        """A writer that gathers records and appends them as one batch per flush; a context manager that flushes.

        expected_position: each batch is appended only where the one before it ended, the first at this position:
        who else appends meanwhile ends it with StreamEndMovedError. max_bytes: of records that are gathered before they
        are appended without being asked to; 50,000 are, too.

        name: a named writer, whose batches have numbers, so that one that is sent again is stored once. It begins the
        epoch above the last one of its name, and by its first batch fences whoever writes in a lower: WriterFencedError
        there. epoch, sequence: instead of that, go on in this epoch, with the batch of this number (from 0): what was
        stored before is answered with `duplicate` in the receipt.

        exclusive: open a stream that was created with exclusive=True for this writer alone; all others are fenced when
        this returns. `name` is what they are told then (host and process without one).
        """
        wish = WriterWish(expected_position, max_bytes, name, exclusive, epoch, sequence)
        return StreamWriter(run(open_session(self._calls, wish)))

    def reader(
        self,
        start: Position = "start",
        *,
        after: Dlsn | int | None = None,
        txid: int | None = None,
        follow: bool = False,
    ) -> Reader:
        """The records from a position on, in order, as an iterator.

        after: instead of `start`, the record after this one (a DLSN or an offset), to go on where a reader stopped.
        txid: instead of it, the first record with this transaction id or a higher one. follow: wait at the end for
        more, until the stream is closed; else stop there. TruncatedError with the first offset where the position lies
        before it; PositionDivergedError where it names a record that the stream does not hold, or where the stream
        turns out to have lost records that were read.
        """
        return Reader(run(cursor_at(self._calls, start, after=after, txid=txid, follow=follow)))

    def truncate(self, before: Position) -> int:
        """Delete every record before a position, durably; the offset of the first that is left."""
        return run(self._calls.truncate(before))

    def close_stream(self, *, expected_position: Dlsn | int | None = None) -> None:
        """Let nothing be appended any more, by anybody, for ever; readers that follow end when they reach the end.

        Durable when it returns. Closing it again does nothing. expected_position: as in `append`.
        """
        run(self._calls.close_stream(expected_position))

    @property
    def is_closed(self) -> bool:
        """Whether it was closed, asked now."""
        return run(self._calls.state()).closed

    def settings(self) -> dict[str, str]:
        """Its topic settings as they are now, by Kafka's names: `retention.ms` and the others."""
        return run(self._calls.settings())

    def start(self) -> int:
        """Offset of the first record that is kept, asked now."""
        return run(self._calls.start())

    def end(self) -> int:
        """Offset after the last record, where the next goes, asked now."""
        return run(self._calls.end())

    def end_position(self) -> Dlsn:
        """The same as a position, which names what lies in front of it: an append that expects it finds that there."""
        return run(self._calls.end_position())
