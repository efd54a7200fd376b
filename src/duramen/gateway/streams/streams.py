"""Reading and writing streams: the calls of the gateway on the asynchronous client."""

from __future__ import annotations

import asyncio
from typing import Any, Final, NamedTuple

from duramen.client.aio import AsyncCluster
from duramen.client.aio.async_position_lookup import locate
from duramen.client.protocol.fetch import FetchedBytes
from duramen.client.protocol.list_offsets import EARLIEST, LATEST
from duramen.client.protocol.metadata import error_code, only
from duramen.client.protocol.positions import (
    AtOffset,
    LogPlace,
    Position,
    check_later_leader,
)
from duramen.client.protocol.producers import ProducerProgress
from duramen.dlsn import Dlsn, dlsn_at
from duramen.errors import ErrorCode, KafkaError
from duramen.gateway.edge.problem import ProblemError
from duramen.gateway.streams.receipt_header import receipt_header
from duramen.gateway.streams.stream_appends import (
    CLOSED_HEADER,
    AppendWish,
    EndMovedError,
    StoredBatchError,
    StreamAppends,
)
from duramen.gateway.streams.stream_page import INFLATED_MAX, StreamPage, page_steps, read_page
from duramen.gateway.streams.stream_position import START, is_confirmed, position_after
from duramen.gateway.streams.stream_topics import StreamInfo, StreamTopics
from duramen.gateway.writes.partition_writes import WrittenShare
from duramen.model import named_producer_id
from duramen.wire.batch import batches, parse_header, records
from duramen.wire.messages import API

DELETE_RECORDS: Final = 21
READ_COMMITTED: Final = 1
_TRUNCATION_MS: Final = 10_000
_WAIT_MS: Final = 5000
_OTHER_LEADER_S: Final = 0.25
"""How long a node is asked to wait for records before it is asked again."""


class StreamEnd(NamedTuple):
    """Where a stream ends, and whether it was closed there. last_timestamp: the greatest of the last batch, 0 where
    there is none; in streams with transaction ids it is the last one.
    """

    position: Dlsn
    closed: bool
    last_timestamp: int = 0


class StreamAppended(NamedTuple):
    """What was appended: the position after it, whether it was there already, whether the stream is closed now, the
    sequence that has to come next from its named writer (-1: not known), and the header with the receipt."""

    position: Dlsn
    duplicate: bool
    closed: bool
    expected_sequence: int
    receipt: dict[str, str]


class Streams:
    """The streams of a cluster; `topics` knows which there are. chunk_max_bytes: fetched at a time for one reader."""

    def __init__(
        self, cluster: AsyncCluster, topics: StreamTopics, appends: StreamAppends, chunk_max_bytes: int
    ) -> None:
        self._cluster = cluster
        self._appends = appends
        self._chunk_max_bytes = chunk_max_bytes
        self._decoding = asyncio.Lock()
        self.topics = topics

    async def append(self, info: StreamInfo, wish: AppendWish) -> StreamAppended:
        """Append the records as one batch, all or none, or close the stream, or both. Problem 400, 403, 409."""
        try:
            if wish.is_plain:
                return _shared(await self._appends.append_plain(info, wish.records), wish.txid)
            answer = await self._appends.append(info, wish)
        except StoredBatchError as stored:
            answer = stored.answer
        except EndMovedError as moved:
            end = await self.end(info)
            code, why = "end-is-elsewhere", "the stream does not end where it was expected to, but at"
            if moved.diverged:
                code, why = "position-diverged", "what was in front of Stream-Expected-Offset was lost; the end is now"
            raise ProblemError(
                409,
                code,
                f"{why} {end.position}",
                {"stream-next-offset": str(end.position), **({CLOSED_HEADER: "true"} if end.closed else {})},
            ) from None
        except ProblemError as problem:
            if problem.code == "closed":
                raise await self.closed_problem(info) from None
            raise
        if answer.base_offset >= 0:
            position = position_after(answer.leader_epoch, answer.base_offset, answer.last_offset)
        else:
            position = (await self.end(info)).position
        closed = answer.closed or wish.close
        return StreamAppended(
            position, answer.duplicate, closed, answer.expected_sequence, receipt_header(answer, txid=wish.txid)
        )

    async def progress(self, info: StreamInfo, name: str) -> ProducerProgress:
        """How far a named writer is."""
        return await self._appends.progress(info, named_producer_id(name))

    async def closed_problem(self, info: StreamInfo) -> ProblemError:
        """What answers an append after the end of a closed stream."""
        end = await self.end(info)
        return ProblemError(
            409,
            "closed",
            "the stream is closed: nothing is appended after it",
            {CLOSED_HEADER: "true", "stream-next-offset": str(end.position)},
        )

    async def end(self, info: StreamInfo) -> StreamEnd:
        """Where a reader of committed records finds nothing more."""
        end = (await self._cluster.list_offsets({info.partition: LATEST}, READ_COMMITTED))[info.partition].offset
        if end == 0:
            return StreamEnd(START, False)
        try:
            fetched = await self._fetch(info, end - 1, 1)
        except KafkaError as error:
            if error.code != ErrorCode.OFFSET_OUT_OF_RANGE:
                raise
            return StreamEnd((await self.locate(info, AtOffset(LATEST))).dlsn, False)  # it was emptied
        header = parse_header(fetched.data)
        page = read_page(fetched, dlsn_at(end - 1, header.base_offset, header.leader_epoch))
        return StreamEnd(page.position, page.closed, max(0, header.max_timestamp))

    async def locate(self, info: StreamInfo, position: Position) -> LogPlace:
        """Where a position is; raises as `positions.find_place`."""
        began_s = asyncio.get_running_loop().time()
        while True:
            try:
                return await locate(self._cluster, info.partition, position, info.topic_id)
            except KafkaError as error:
                check_later_leader(error, position, info.replicas, asyncio.get_running_loop().time() - began_s)
            await asyncio.sleep(_OTHER_LEADER_S)
            await self._cluster.metadata([info.topic])

    async def timestamp(self, info: StreamInfo, offset: int) -> int | None:
        """The timestamp of the record at an offset; None where there is none, or the system's own."""
        fetched = await self._cluster.fetch(info.partition, offset, 1, max_wait_ms=0, topic_id=info.topic_id)
        for place, header in batches(fetched.data):
            for record in records(fetched.data[place : place + header.size], header, max_bytes=INFLATED_MAX):
                if record.offset == offset and not header.is_control:
                    return record.timestamp
        return None

    async def truncate(self, info: StreamInfo, before: int) -> int:
        """Delete the records below an offset, on stable storage before it returns; the offset that is first now."""
        message = API[DELETE_RECORDS].request
        share = message.DeleteRecordsPartition(partition_index=0, offset=before)
        topic = message.DeleteRecordsTopic(name=info.topic, partitions=[share])
        request = message.new(topics=[topic], timeout_ms=_TRUNCATION_MS)

        def answered(response: Any) -> Any:
            return only(only(response.topics, info.topic).partitions, info.topic)

        response = await self._cluster.call(
            info.partition, DELETE_RECORDS, request, code_of=lambda response: int(answered(response).error_code)
        )
        found = answered(response)
        if found.error_code:
            code = error_code(found.error_code)
            raise KafkaError(code, f"DeleteRecords before {before}: {code.name}")
        return int(found.low_watermark)

    async def read(self, info: StreamInfo, position: Dlsn) -> StreamPage:
        """The next messages at a position, or the news that there are none now. BelowStartError, DlsnDivergedError."""
        while True:
            try:
                fetched = await self._fetch(info, position.offset, self._chunk_max_bytes)
                await self._confirm(info, position, fetched)
            except KafkaError as error:
                if error.code != ErrorCode.OFFSET_OUT_OF_RANGE:
                    raise
                await self.locate(info, position)  # says why
                continue
            page = await self._decoded(fetched, position)
            if page.records or page.up_to_date:
                return page
            position = page.position

    async def _decoded(self, fetched: FetchedBytes, position: Dlsn) -> StreamPage:
        """The page, made in steps between which others get their turn; one at a time."""
        async with self._decoding:
            steps = page_steps(fetched, position)
            while True:
                try:
                    next(steps)
                except StopIteration as end:
                    page: StreamPage = end.value
                    return page
                await asyncio.sleep(0)

    async def leader(self, info: StreamInfo) -> int:
        """Id of the node that leads it, as far as is known."""
        return await self._cluster.leader(info.partition)

    async def log_start(self, info: StreamInfo) -> int:
        """The offset of the first record that there is."""
        return (await self._cluster.list_offsets({info.partition: EARLIEST}))[info.partition].offset

    async def arriving(self, info: StreamInfo, position: Dlsn) -> FetchedBytes:
        """What comes at a position, for all readers that have reached the end; nothing when nothing came for 5 s.

        Errors as of `AsyncCluster.fetch`; BelowStartError, DlsnDivergedError.
        """
        fetched = await self._fetch(info, position.offset, self._chunk_max_bytes, _WAIT_MS)
        if fetched.data:
            await self._confirm(info, position, fetched)
        return fetched

    async def _confirm(self, info: StreamInfo, position: Dlsn, fetched: FetchedBytes) -> None:
        """Raises as `locate` unless what was fetched goes on from the record that the position is behind.

        It comes after the fetch: what is stored by then was stored before.
        """
        found = fetched.data
        if not found and position.offset > max(START.offset, fetched.log_start_offset):
            found = (await self._fetch(info, position.offset - 1, 1)).data
        if not is_confirmed(position, found):
            await self.locate(info, position)

    async def _fetch(self, info: StreamInfo, offset: int, max_bytes: int, wait_ms: int = 0) -> FetchedBytes:
        return await self._cluster.fetch(
            info.partition, offset, max_bytes, READ_COMMITTED, max_wait_ms=wait_ms, topic_id=info.topic_id
        )


def _shared(share: WrittenShare, txid: int | None) -> StreamAppended:
    """Of an append that left with others."""
    batch = share.batch
    position = position_after(batch.leader_epoch, batch.base_offset, share.last)
    return StreamAppended(position, False, batch.closed, -1, receipt_header(batch, share.first, txid))
