"""Reading and writing streams: the calls of the gateway on the asynchronous client."""

from __future__ import annotations

from typing import Final, NamedTuple

from duramen.client.aio import AsyncCluster
from duramen.client.protocol.fetch import FetchedBytes
from duramen.client.protocol.list_offsets import EARLIEST, LATEST
from duramen.dlsn import Dlsn
from duramen.errors import ErrorCode, KafkaError
from duramen.gateway.problem import ProblemError
from duramen.gateway.stream_appends import CLOSED_HEADER, AppendWish, EndMovedError, StoredBatchError, StreamAppends
from duramen.gateway.stream_page import StreamPage, read_page
from duramen.gateway.stream_position import START, behind
from duramen.gateway.stream_topics import StreamInfo, StreamTopics

READ_COMMITTED: Final = 1
_WAIT_MS: Final = 5000
"""How long a node is asked to wait for records before it is asked again."""


class StreamEnd(NamedTuple):
    """Where a stream ends, and whether it was closed there."""

    position: Dlsn
    closed: bool


class StreamAppended(NamedTuple):
    """What was appended: the position behind it, whether it was there already, whether the stream is closed now, and
    the sequence that has to come next from its named writer (-1: not known)."""

    position: Dlsn
    duplicate: bool
    closed: bool
    expected_sequence: int


class Streams:
    """The streams of a cluster; `topics` knows which there are. chunk_max_bytes: fetched at a time for one reader."""

    def __init__(
        self, cluster: AsyncCluster, topics: StreamTopics, appends: StreamAppends, chunk_max_bytes: int
    ) -> None:
        self._cluster = cluster
        self._appends = appends
        self._chunk_max_bytes = chunk_max_bytes
        self.topics = topics

    async def append(self, info: StreamInfo, wish: AppendWish) -> StreamAppended:
        """Append the messages as one batch, all or none, or close the stream, or both. Problem 400, 403, 409."""
        try:
            answer = await self._appends.append(info, wish)
        except StoredBatchError as stored:
            answer = stored.answer
        except EndMovedError:
            end = await self.end(info)
            raise ProblemError(
                409,
                "end-is-elsewhere",
                f"the stream does not end where it was expected to, but at {end.position}",
                {"stream-next-offset": str(end.position), **({CLOSED_HEADER: "true"} if end.closed else {})},
            ) from None
        except ProblemError as problem:
            if problem.code == "closed":
                raise await self.closed_problem(info) from None
            raise
        if answer.base_offset >= 0:
            position = behind(answer.leader_epoch, answer.base_offset, answer.last_offset)
        else:
            position = (await self.end(info)).position
        return StreamAppended(position, answer.duplicate, answer.closed or wish.close, answer.expected_sequence)

    async def closed_problem(self, info: StreamInfo) -> ProblemError:
        """What answers an append behind the end of a closed stream."""
        end = await self.end(info)
        return ProblemError(
            409,
            "closed",
            "the stream is closed: nothing is appended behind it",
            {CLOSED_HEADER: "true", "stream-next-offset": str(end.position)},
        )

    async def end(self, info: StreamInfo) -> StreamEnd:
        """Where a reader of committed records finds nothing more."""
        end = (await self._cluster.list_offsets({info.partition: LATEST}, READ_COMMITTED))[info.partition].offset
        if end == 0:
            return StreamEnd(START, False)
        at = Dlsn(max(0, info.leader_epoch) + 1, end - 1, 0)
        try:
            fetched = await self._fetch(info, at.offset, 1)
        except KafkaError as error:
            if error.code != ErrorCode.OFFSET_OUT_OF_RANGE:
                raise
            return StreamEnd(at._replace(entry=end), False)  # retention has emptied it
        page = read_page(fetched, at)
        return StreamEnd(page.position, page.closed)

    async def read(self, info: StreamInfo, position: Dlsn) -> StreamPage:
        """The next messages at a position, or the news that there are none now. Problem 410, 409."""
        while True:
            try:
                fetched = await self._fetch(info, position.offset, self._chunk_max_bytes)
            except KafkaError as error:
                if error.code != ErrorCode.OFFSET_OUT_OF_RANGE:
                    raise
                position = await self._moved(info, position)
                continue
            page = read_page(fetched, position)
            if page.messages or page.up_to_date:
                return page
            position = page.position

    async def arriving(self, info: StreamInfo, position: Dlsn) -> FetchedBytes:
        """What comes at a position, for all readers that have reached the end; nothing when nothing came for 5 s.

        Errors as of `AsyncCluster.fetch`.
        """
        return await self._fetch(info, position.offset, self._chunk_max_bytes, _WAIT_MS)

    async def _fetch(self, info: StreamInfo, offset: int, max_bytes: int, wait_ms: int = 0) -> FetchedBytes:
        return await self._cluster.fetch(
            info.partition, offset, max_bytes, READ_COMMITTED, max_wait_ms=wait_ms, topic_id=info.topic_id
        )

    async def _moved(self, info: StreamInfo, position: Dlsn) -> Dlsn:
        """Where to read from instead of a position that is not in the log; Problem where that would skip records."""
        tp = info.partition
        start = (await self._cluster.list_offsets({tp: EARLIEST}, READ_COMMITTED))[tp].offset
        first = Dlsn(max(0, info.leader_epoch) + 1, start, 0)
        if position == START:
            return first
        if position.offset < start:
            raise ProblemError(
                410,
                "truncated",
                f"offset: the records there are gone; the first position that there is: {first}",
                {"stream-next-offset": str(first)},
            )
        raise ProblemError(
            409,
            "position-diverged",
            "offset: it is behind the end of the stream; it belongs to another stream, or to records that were lost",
        )
