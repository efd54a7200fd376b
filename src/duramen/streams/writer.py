"""Writing to a stream in batches."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from duramen.streams.immediate import run
from duramen.streams.receipt import Receipt
from duramen.streams.records import NewStreamRecord
from duramen.streams.writer_session import WriterSession


class StreamWriter:
    """Gathers records and appends them as one batch per flush. For one thread; `Stream.writer` gives it.

    As a context manager it flushes at the end, but not where its block raises. After an append that was refused it
    takes no more: open another one where the stream really ends. Where an append got no answer (DeadlineError,
    NetworkError) a writer with a name, or an exclusive one, may flush again: the batch is stored once. Of another one
    it is not known then whether it is stored, and it takes no more.
    """

    def __init__(self, session: WriterSession) -> None:
        self._session = session

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        run(self._session.close(flushes=error is None))

    @property
    def epoch(self) -> int:
        """Of a named writer; -1 of others. Whoever begins a higher one fences this writer."""
        return -1 if self._session.turn is None else self._session.turn.epoch

    @property
    def sequence(self) -> int:
        """The number of a named writer's next batch in its epoch; -1 of others."""
        return -1 if self._session.turn is None else self._session.turn.sequence

    def write(self, record: bytes | NewStreamRecord, *, txid: int | None = None) -> Receipt | None:
        """Gather a record; the receipt of a batch where that made it large enough to be appended, else None.

        txid: its transaction id, in a stream that was created with txid="application". Errors as `flush`; KafkaError
        for a txid in another stream.
        """
        return run(self._session.write(record, txid))

    def flush(self) -> Receipt | None:
        """Append what was gathered as one batch, and return once it is durable; None where there was nothing.

        Errors as `Stream.append`; WriterFencedError where somebody else writes by now, WriterSequenceError for a
        sequence that leaves a gap.
        """
        return run(self._session.flush())

    def close_stream(self) -> None:
        """Flush, and let nothing be appended any more, for ever. An exclusive stream is closed by its writer alone.

        Errors as `flush`.
        """
        run(self._session.close_stream())

    def close(self) -> None:
        """Flush, and give an exclusive stream up: nobody writes to it until it is opened again. Errors as `flush`."""
        run(self._session.close(flushes=True))
