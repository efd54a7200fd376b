"""One consumer: its requests come one after the other, and move it through its partitions."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Mapping
from typing import Final

from duramen.client.aio import AsyncCluster
from duramen.client.aio.async_group_offsets import AsyncGroupOffsets
from duramen.client.protocol.fetch import FetchedBytes
from duramen.client.protocol.group_offsets import GroupOffset
from duramen.client.protocol.list_offsets import EARLIEST, LATEST
from duramen.errors import ErrorCode, KafkaError
from duramen.gateway.consumers.consumer_positions import UNKNOWN, ConsumerPositions
from duramen.gateway.consumers.consumer_settings import ConsumerSettings
from duramen.gateway.consumers.record_portion import RecordPortion, portion_steps
from duramen.gateway.edge.problem import ProblemError
from duramen.model import TopicPartition

_READ_COMMITTED: Final = 1
_AWAY_S: Final = 5.0
"""How long a read goes on asking for what does not answer."""
_SLICE_S: Final = 0.5
_SLICE_OF_SEVERAL_S: Final = 0.1
"""How long nodes are let wait at a time: one of them alone, or several, all of which are waited for."""


class ConsumerInstance:
    """A consumer of a group. owner: the name of the principal that made it.

    turn: to be held by each request while it uses the consumer. last_used_s: of a clock that only goes forward.
    """

    def __init__(
        self, cluster: AsyncCluster, group: str, name: str, owner: str, settings: ConsumerSettings, now_s: float
    ) -> None:
        self.name = name
        self.owner = owner
        self.settings = settings
        self.turn = asyncio.Lock()
        self.last_used_s = now_s
        self.is_ended = False
        self.positions = ConsumerPositions()
        self._cluster = cluster
        self._offsets = AsyncGroupOffsets(cluster, group)

    # ---- what is read ------------------------------------------------------------------------------------------

    async def assign(self, wanted: Iterable[TopicPartition]) -> None:
        """Read these partitions from now on: from what the group has committed, else as auto.offset.reset says."""
        wanted = list(wanted)
        fresh = self.positions.missing(wanted)
        found = await self._offsets.committed(fresh) if fresh else {}
        committed = {tp: each.offset for tp, each in found.items()}
        starts = await self._reset([tp for tp in fresh if tp not in committed]) | committed
        self.positions.replace({tp: starts.get(tp, UNKNOWN) for tp in wanted})
        self.positions.committed(committed)

    async def _reset(self, wanted: list[TopicPartition]) -> dict[TopicPartition, int]:
        if self.settings.reset == "none":
            return dict.fromkeys(wanted, UNKNOWN)
        return await self._ends(wanted, EARLIEST if self.settings.reset == "earliest" else LATEST)

    async def _ends(self, wanted: list[TopicPartition], which: int) -> dict[TopicPartition, int]:
        if not wanted:
            return {}
        found = await self._cluster.list_offsets(dict.fromkeys(wanted, which), _READ_COMMITTED)
        return {tp: each.offset for tp, each in found.items()}

    async def seek_to_end(self, wanted: list[TopicPartition], *, beginning: bool) -> None:
        """Go on at the first offset of these partitions, or behind the last that is committed."""
        self.positions.check(wanted)
        self.positions.seek(await self._ends(wanted, EARLIEST if beginning else LATEST))

    # ---- records -----------------------------------------------------------------------------------------------

    async def read(self, wait_s: float, max_bytes: int, stopping: asyncio.Event) -> RecordPortion:
        """The next records: at once, where there are fetch.min.bytes of them, else what there is after so long.

        What was answered before is committed first, with auto.commit.enable. Problem 500 for a record that the format
        cannot show, where it is the next one.
        """
        await self.commit_answered()
        clock = asyncio.get_running_loop()
        end_s = clock.time() + wait_s
        pause_s = 0.0
        while True:
            portion = await self._portion(max_bytes, pause_s)
            left_s = end_s - clock.time()
            enough = portion.records and portion.size >= self.settings.min_bytes
            if enough or left_s <= 0 or self.is_ended or stopping.is_set():
                return portion
            pause_s = min(left_s, await self._slice_s())
            if portion.records:  # a node counts other bytes than those of keys and values
                await asyncio.sleep(min(pause_s, _SLICE_OF_SEVERAL_S))
                pause_s = 0.0
            elif not self.positions.partitions:
                await asyncio.sleep(pause_s)
            else:
                self.positions.answered(portion.moved)

    async def _portion(self, max_bytes: int, pause_s: float) -> RecordPortion:
        positions = self.positions.positions
        for tp, offset in positions.items():
            if offset == UNKNOWN:
                raise ProblemError(
                    409,
                    "consumer-state",
                    f"Nothing is committed of {tp}, and auto.offset.reset is none: seek by POST …/positions.",
                )
        if not positions:
            return RecordPortion([], 0, {})
        answers = await self._cluster.fetch_many(
            positions,
            max_bytes,
            _READ_COMMITTED,
            max_wait_ms=int(pause_s * 1000),
            min_bytes=self.settings.min_bytes,
            timeout_s=_AWAY_S + pause_s,
        )
        await self._go_back([tp for tp, answer in answers.items() if _is_out_of_range(answer)])
        fetched = {tp: answer for tp in positions if isinstance(answer := answers[tp], FetchedBytes)}
        steps = portion_steps(fetched, self.settings.embedded, max_bytes)
        while True:
            try:
                next(steps)
            except StopIteration as end:
                portion: RecordPortion = end.value
                break
            await asyncio.sleep(0)
        if portion.unfit is not None:
            tp, offset, why = portion.unfit
            self.positions.answered(portion.moved)
            self.positions.passed_over(tp)
            raise ProblemError(
                500,
                "unfit-record",
                f"Error deserializing key/value for partition {tp} at offset {offset}: it is not JSON: {why}. "
                f"If needed, please seek past the record to continue consumption (POST …/positions with {offset + 1}).",
            )
        refused = [each for each in answers.values() if isinstance(each, KafkaError) and not _is_out_of_range(each)]
        if refused and not portion.records:
            raise refused[0]
        return portion

    async def _go_back(self, lost: list[TopicPartition]) -> None:
        """Partitions whose position is gone go on as auto.offset.reset says."""
        if lost:
            self.positions.seek(await self._reset(lost))

    async def _slice_s(self) -> float:
        leaders = {await self._cluster.leader(tp) for tp in self.positions.partitions}
        return _SLICE_S if len(leaders) < 2 else _SLICE_OF_SEVERAL_S

    # ---- commits -----------------------------------------------------------------------------------------------

    async def committed(self, wanted: Collection[TopicPartition]) -> dict[TopicPartition, GroupOffset]:
        """What the group has committed of these partitions."""
        return await self._offsets.committed(wanted)

    async def commit(self, offsets: Mapping[TopicPartition, GroupOffset]) -> None:
        """Commit these offsets."""
        if offsets:
            await self._offsets.commit(offsets)
            self.positions.committed({tp: each.offset for tp, each in offsets.items()})

    async def commit_all(self) -> None:
        """Commit where the consumer is."""
        await self.commit({tp: GroupOffset(offset) for tp, offset in self.positions.uncommitted.items()})

    async def commit_answered(self) -> None:
        """The same, with auto.commit.enable."""
        if self.settings.auto_commit:
            await self.commit_all()


def _is_out_of_range(answer: FetchedBytes | KafkaError) -> bool:
    return isinstance(answer, KafkaError) and answer.code == ErrorCode.OFFSET_OUT_OF_RANGE
