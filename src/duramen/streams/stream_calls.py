"""What is asked of one stream, upon any back end: appends and their refusals, positions, truncation, closing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import datetime
from time import time_ns
from typing import NamedTuple

from duramen.client.protocol.list_offsets import EARLIEST, LATEST
from duramen.client.protocol.positions import AtOffset, BelowStartError, DlsnDivergedError
from duramen.client.protocol.producers import ProducerProgress
from duramen.dlsn import BEFORE_FIRST, FIRST, Dlsn
from duramen.errors import DeadlineError, ErrorCode, KafkaError, StreamClosedError, TopicReplacedError
from duramen.model import NO_TIMESTAMP
from duramen.streams.errors import (
    AppendTooLargeError,
    NoSuchStreamError,
    OtherTxidsError,
    PositionDivergedError,
    StreamEndMovedError,
    TruncatedError,
    TxidMissingError,
    TxidOutOfOrderError,
    WriterFencedError,
    WriterSequenceError,
)
from duramen.streams.link import AppendTerms, StreamKind, StreamLink, StreamTail, TxidKind
from duramen.streams.read_positions import Position, Txid, wanted
from duramen.streams.receipt import Receipt, receipt_of
from duramen.streams.records import NewStreamRecord, Row, StreamSpot, Stretch, has_txid, rows_of
from duramen.wire.conditional_answer import ConditionalAnswer

Records = bytes | bytearray | memoryview | NewStreamRecord | Iterable[bytes | NewStreamRecord]


class MadeRows(NamedTuple):
    """Rows, and the stream that they are made for; None where that cannot be seen."""

    rows: list[Row]
    kind: StreamKind | None


class StreamCalls:
    """One stream at a back end. Its errors are in the words of streams.

    stream_id: of the one that had the name at first, which alone is read; "" where the cluster has no ids.
    """

    def __init__(self, link: StreamLink, name: str, topic: str, stream_id: str = "") -> None:
        self.name = name
        self.topic = topic
        self.stream_id = stream_id
        self._link = link
        self._kind: StreamKind | None = None
        """As last asked; appends are bound to that stream, for which their records are made."""
        self._is_hidden = False

    # ---- writing ---------------------------------------------------------------------------------------------

    async def append(self, records: Records, expected: Dlsn | int | None, *, close: bool) -> Receipt:
        """See `Stream.append`."""
        given = list(records) if isinstance(records, Iterable) and not isinstance(records, _BYTES | str) else records
        while True:
            made = await self.made_rows(given)
            try:
                return receipt_of(await self.send(made, AppendTerms(condition(expected), close)), len(made.rows))
            except OtherTxidsError:
                pass  # made anew for what it is now

    async def made_rows(self, given: object) -> MadeRows:
        """Records as the stream takes them; raises as `rows_of`, KafkaError where they have transaction ids and it
        takes none. What does not fit is asked about again: the name may be another stream's by now."""
        while True:
            known = self._kind
            try:
                rows = rows_of(given, await self.now_ms())
            except TxidMissingError:
                if known is None:
                    raise
                self._kind = None
                continue
            kind = self._kind
            if any(map(has_txid, given if isinstance(given, list) else (given,))):
                await self._check_takes_txids()
            if self._kind == kind:
                return MadeRows(rows, kind)

    async def send(self, made: MadeRows | None, terms: AppendTerms) -> ConditionalAnswer:
        """One append, or a close alone; the answer that it took effect. OtherTxidsError."""
        with self.errors():
            answer = await self._append(made, terms)
        if answer.code is not ErrorCode.NONE:
            raise self._refusal(answer, terms, len(made.rows) if made else 0)
        return answer

    async def _append(self, made: MadeRows | None, terms: AppendTerms) -> ConditionalAnswer:
        """Goes by the name, as long as what has it gives transaction ids as the stream did that the rows are for."""
        if made is None or made.kind is None:
            return await self._link.append(self.topic, None if made is None else made.rows, terms)
        kind = made.kind
        while True:
            if self._kind is not None and self._kind.txids == kind.txids:
                kind = self._kind
            try:
                return await self._link.append(self.topic, made.rows, terms._replace(stream_id=kind.stream_id))
            except TopicReplacedError:
                self._kind = None
                now = await self.txid_kind()
                if now != kind.txids:
                    raise OtherTxidsError(self.name, now) from None

    def _refusal(self, answer: ConditionalAnswer, terms: AppendTerms, records: int) -> KafkaError:
        text = f"{self.name}: {answer.message or answer.code.name}"
        if answer.code is ErrorCode.END_IS_ELSEWHERE:
            return StreamEndMovedError(text, answer.end_offset)
        if answer.code is ErrorCode.OFFSET_OUT_OF_RANGE:
            return PositionDivergedError(text, answer.end_offset)
        if answer.code is ErrorCode.STREAM_CLOSED:
            return StreamClosedError(self.name)
        if answer.code is ErrorCode.TXID_OUT_OF_ORDER:
            return TxidOutOfOrderError(text, answer.last_txid)
        if answer.code is ErrorCode.PRODUCER_FENCED:
            return WriterFencedError(text)
        if answer.code in _TOO_LARGE:
            return AppendTooLargeError(text, records)
        if terms.writer is not None and answer.code is ErrorCode.INVALID_PRODUCER_EPOCH:
            who = f"{self.name}: the writer {terms.writer.name!r} is at epoch {answer.writer_epoch} by now"
            return WriterFencedError(f"{who}; this one has {terms.writer.epoch}", answer.writer_epoch)
        if terms.writer is not None and answer.code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER:
            expected = answer.expected_sequence
            gap = f"{expected} has to come next in epoch {terms.writer.epoch}, not {terms.writer.sequence}"
            return WriterSequenceError(f"{self.name}: {gap}", expected)
        return KafkaError(answer.code, text)

    async def close_stream(self, expected: Dlsn | int | None) -> None:
        """See `Stream.close_stream`."""
        await self.send(None, AppendTerms(condition(expected), close=True))

    async def open_writer(self, name: str) -> int:
        """See `StreamLink`."""
        with self.errors():
            return await self._link.open_writer(self.topic, name)

    async def release_writer(self, name: str, producer_id: int) -> None:
        """See `StreamLink`. WriterFencedError."""
        with self.errors():
            await self._link.release_writer(self.topic, name, producer_id)

    async def progress(self, name: str, producer_id: int) -> ProducerProgress:
        """See `StreamLink`."""
        with self.errors():
            return await self._link.progress(self.topic, name, producer_id)

    async def _check_takes_txids(self) -> None:
        """KafkaError where the application gives no transaction ids to the stream's records."""
        kind = await self.txid_kind()
        if kind != "application":
            self._kind = None
            kind = await self.txid_kind()
        if kind != "application":
            why = (
                "its leader gives the transaction ids"
                if kind == "assigned"
                else "its records have no transaction ids; create it with txid='application'"
            )
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"{self.name}: a txid was given, but {why}")

    # ---- reading ---------------------------------------------------------------------------------------------

    async def locate(self, position: Position) -> StreamSpot:
        """Where a position is. TruncatedError, PositionDivergedError; KafkaError for one of another kind."""
        place = wanted(position)
        if isinstance(position, Txid | datetime):
            kind = await self.txid_kind()
            if isinstance(position, Txid) and kind == "none":
                text = f"{self.name}: its records have no transaction ids; a datetime finds their times"
                raise KafkaError(ErrorCode.INVALID_REQUEST, text)
            if isinstance(position, datetime) and kind == "application":
                text = f"{self.name}: its timestamps are transaction ids; Txid finds them"
                raise KafkaError(ErrorCode.INVALID_REQUEST, text)
        with self.errors():
            try:
                spot = await self._link.locate(self.topic, place)
            except BelowStartError as error:
                await self._check_still()
                raise TruncatedError(self.name, position, error.first.offset) from error
            except DlsnDivergedError as error:
                await self._check_still()
                raise PositionDivergedError(f"{self.name}: {error}") from error
            except KafkaError as error:
                if error.code is not ErrorCode.OFFSET_OUT_OF_RANGE:
                    raise
                await self._check_still()
                end = await self.end()
                raise PositionDivergedError(f"{self.name} ends at {end}, in front of {position}", end) from error
        self._check_same(self.stream_id, spot.stream_id)
        return spot

    async def fetch(self, spot: StreamSpot) -> Stretch:
        """What is at a spot, once it was seen that the history in front of it is still the same. As `locate`."""
        while True:
            with self.errors():
                try:
                    stretch = await self._link.fetch(self.topic, spot)
                except KafkaError as error:
                    if error.code is not ErrorCode.OFFSET_OUT_OF_RANGE:
                        raise
                    stretch = None
            if stretch is not None and (
                not stretch.batches or stretch.batches[0].leader_epoch == spot.dlsn.leader_epoch
            ):
                return stretch  # a leader has one history
            found = await self.locate(spot.dlsn)  # says what became of it
            self._check_same(spot.stream_id, found.stream_id)
            if stretch is not None:
                return stretch

    async def wait(self, spot: StreamSpot) -> None:
        """See `StreamLink`."""
        with self.errors():
            try:
                await self._link.wait(self.topic, spot)
            except KafkaError as error:
                if error.code is not ErrorCode.OFFSET_OUT_OF_RANGE:  # `fetch` says what that means
                    raise

    async def state(self) -> StreamTail:
        """How the stream stands now."""
        with self.errors():
            return await self._link.state(self.topic)

    async def txid_kind(self) -> TxidKind:
        """Asked once, and again where an append shows that it may be another stream's."""
        if self._kind is None:
            with self.errors():
                self._kind = await self._link.kind(self.topic)
        return self._kind.txids

    async def now_ms(self) -> int | None:
        """The timestamp of records that have none; None where each needs its own, which is its transaction id. Who may
        write alone does not see that: the gateway decides then.
        """
        if not self._is_hidden:
            try:
                return None if await self.txid_kind() == "application" else time_ns() // 1_000_000
            except KafkaError as error:
                if error.code is not ErrorCode.TOPIC_AUTHORIZATION_FAILED:
                    raise
                self._is_hidden = True
        return NO_TIMESTAMP

    async def settings(self) -> dict[str, str]:
        """See `Stream.settings`."""
        with self.errors():
            return dict(await self._link.settings(self.topic))

    async def start(self) -> int:
        """See `Stream.start`."""
        with self.errors():
            return (await self._link.locate(self.topic, AtOffset(EARLIEST))).offset

    async def end(self) -> int:
        """See `Stream.end`."""
        return (await self.end_position()).offset

    async def end_position(self) -> Dlsn:
        """See `Stream.end_position`."""
        with self.errors():
            return (await self._link.locate(self.topic, AtOffset(LATEST))).dlsn

    async def truncate(self, before: Position) -> int:
        """See `Stream.truncate`."""
        try:
            place = await self.locate(before)
        except TruncatedError as error:
            if isinstance(before, Dlsn):
                raise
            return error.first  # it was done before
        with self.errors():
            return await self._link.truncate(self.topic, place.offset)

    async def _check_still(self) -> None:
        """As `_check_same`, asked where a position was refused."""
        self._check_same(self.stream_id, await self._link.stream_id(self.topic))

    def _check_same(self, wanted: str, found: str) -> None:
        """PositionDivergedError where that is another stream of the name."""
        if wanted and found and found != wanted:
            raise self._made_again()

    def _made_again(self) -> PositionDivergedError:
        return PositionDivergedError(
            f"{self.name}: the stream was deleted and made again, and positions of the one before are none of this; "
            "get it anew from the namespace, and begin at its start"
        )

    @contextmanager
    def errors(self) -> Iterator[None]:
        """Around a call of the back end: what it is refused for, in the words of streams."""
        try:
            yield
        except TopicReplacedError as error:
            raise self._made_again() from error
        except DeadlineError as error:
            if error.last is not None and error.last.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                raise NoSuchStreamError(self.name) from error
            if error.last is not None and error.last.code is ErrorCode.UNKNOWN_LEADER_EPOCH:
                raise PositionDivergedError(f"{self.name}: {error.last}") from error
            raise
        except KafkaError as error:
            if isinstance(error, NoSuchStreamError | WriterFencedError):
                raise
            if error.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                raise NoSuchStreamError(self.name) from error
            if error.code is ErrorCode.PRODUCER_FENCED:
                raise WriterFencedError(f"{self.name}: {error.message}") from error
            if error.code is ErrorCode.STREAM_CLOSED:
                raise StreamClosedError(self.name) from error
            raise


_BYTES = bytes | bytearray | memoryview
_TOO_LARGE = (ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE)


def condition(expected: Dlsn | int | None) -> Dlsn | int | None:
    """As a back end takes it. TypeError, ValueError."""
    if isinstance(expected, Dlsn):
        if expected != BEFORE_FIRST and not expected.is_record:
            raise ValueError(f"expected_position: {expected} is no position")
        return max(expected, FIRST)
    if expected is None:
        return None
    if not isinstance(expected, int) or isinstance(expected, bool) or not 0 <= expected < 1 << 63:
        raise TypeError(f"expected_position is a Dlsn, an offset or None, not {expected!r:.80}")
    return expected
