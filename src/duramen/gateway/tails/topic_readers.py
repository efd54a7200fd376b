"""Readers of streams and topics, made from where they want to begin."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from duramen.dlsn import Dlsn, identified_text
from duramen.gateway.edge.metrics import GatewayMetrics
from duramen.gateway.edge.problem import ProblemError, bad_request
from duramen.gateway.streams.stream_position import BEGINNING, NOW, START, parse_position_in
from duramen.gateway.streams.stream_topics import NO_TXIDS, StreamInfo
from duramen.gateway.streams.streams import Streams
from duramen.gateway.tails.followed_partitions import FollowedPartitions
from duramen.gateway.tails.old_reads import OldReads
from duramen.gateway.tails.partition_follower import PartitionFollower
from duramen.gateway.tails.reader_start import ReaderStart
from duramen.gateway.tails.record_form import record_form
from duramen.gateway.tails.shared_tails import SharedTails
from duramen.gateway.tails.topic_position import parse_topic_position, topic_position_text

_ENDS_AT_ONCE: Final = 16


class TopicReaders:
    """Makes readers."""

    def __init__(self, streams: Streams, reads: OldReads, tails: SharedTails, metrics: GatewayMetrics) -> None:
        self._streams = streams
        self._reads = reads
        self._tails = tails
        self._metrics = metrics

    async def stream(self, topic: str, start: ReaderStart) -> FollowedPartitions:
        """A reader of a stream. Problem 400, 404, 409."""
        if start.partition is not None:
            raise bad_request("partition", "a stream has one; those of a topic are read at /v1/topics/{topic}")
        info = await self._streams.topics.get(topic)
        if start.position not in (NOW, BEGINNING):
            position = parse_position_in(start.position, info.topic_id.hex(), start.field)
        else:
            position = (await self._begin([info], start.position))[0]
        begins = start.position == BEGINNING
        follower = self._follower(info, position, start, begins=begins, names_partition=False)
        stream_id = info.topic_id.hex()
        return FollowedPartitions(self._tails, [follower], lambda positions: identified_text(positions[0], stream_id))

    async def topic(self, topic: str, start: ReaderStart) -> FollowedPartitions:
        """A reader of all partitions of a topic, or of one. Problem 400, 404, 409."""
        infos = await self.partitions(topic)
        topic_id = infos[0].topic_id
        if start.partition is not None:
            if start.partition >= len(infos):
                raise bad_request("partition", f"the topic has {len(infos)}, numbered from 0")
            infos = [infos[start.partition]]
        numbers = [info.number for info in infos]
        if start.position in (NOW, BEGINNING):
            begin: list[Dlsn | None] = [*await self._begin(infos, start.position)]
        else:
            given = parse_topic_position(start.position, topic_id, start.field)
            begin = [given.get(number) for number in numbers]  # partitions may have been added
        begins = start.position == BEGINNING
        followers = [
            self._follower(info, position or START, start, begins=begins or position is None, names_partition=True)
            for info, position in zip(infos, begin, strict=True)
        ]
        return FollowedPartitions(
            self._tails,
            followers,
            lambda positions: topic_position_text(topic_id, dict(zip(numbers, positions, strict=True))),
        )

    async def partitions(self, topic: str) -> list[StreamInfo]:
        """The partitions of a topic, as they were a moment ago at the earliest. Problem 404."""
        found = await self._streams.topics.partitions(topic)
        if not found:
            raise ProblemError(404, "no-such-topic", f"there is no topic {topic}")
        return found

    async def _begin(self, infos: Sequence[StreamInfo], position: str) -> list[Dlsn]:
        if position == BEGINNING:
            return [START] * len(infos)
        found: list[Dlsn] = []
        for first in range(0, len(infos), _ENDS_AT_ONCE):
            some = infos[first : first + _ENDS_AT_ONCE]
            found += [end.position for end in await asyncio.gather(*map(self._streams.end, some))]
        return found

    def _follower(
        self, info: StreamInfo, position: Dlsn, start: ReaderStart, *, begins: bool, names_partition: bool
    ) -> PartitionFollower:
        form = record_form(
            start.encoding, names_txid=info.txid != NO_TXIDS, partition=info.number if names_partition else -1
        )
        advance = start.advance or begins  # the beginning is wherever it is by now
        return PartitionFollower(
            self._reads,
            self._tails,
            self._metrics,
            info,
            form,
            position,
            match=start.match,
            advance=advance,
            joins=start.joins,
        )
