"""`spark.readStream.format("duramen")`: which offsets each micro-batch takes, and whether they are still there.

Offsets are kept by Spark, in the JSON of its own Kafka source, so that a checkpoint's offsets mean the same to both.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from duramen.client import LATEST, Cluster
from duramen.client.blocking.segment_plans import release_leases
from duramen.client.protocol.segments import HeldLease
from duramen.errors import ConfigError, DeadlineError, KafkaError, NetworkError, TopicReplacedError
from duramen.model import NO_TOPIC_ID, TopicId, TopicPartition
from duramen.spark.codec.schema import arrow_schema
from duramen.spark.options.options import STREAM, parse
from duramen.spark.options.positions import Positions, first_from_json, from_json, ids_from_json, to_json
from duramen.spark.source.admission import by_bytes, by_offsets, byte_shares
from duramen.spark.source.batch_reader import behind_losses, only_of_key
from duramen.spark.source.data_loss import IS_GONE, lost, replaced
from duramen.spark.source.offset_ranges import GONE, OffsetRanges
from duramen.spark.source.plan import identified, packed, splits, splits_of
from duramen.spark.source.planner_process import end_quietly_when_hung_up
from duramen.spark.source.settings import cutting, limits, settings
from duramen.spark.source.sizes import layout
from duramen.spark.source.storage_plan import assign

_AHEAD: Final = 2
"""How many times the bytes of a batch are looked at: its segments, the first guess, need not be even."""


class DuramenStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """One streaming query. Copies of it travel to the tasks; the one on the driver keeps a connection."""

    def __init__(self, given: Mapping[str, str], schema: StructType) -> None:
        end_quietly_when_hung_up()
        self._options = parse(given, STREAM)
        self._settings = settings(self._options)
        self._schema = arrow_schema(schema, self._options)
        self._limits = limits(self._options)
        self._cluster: Cluster | None = None
        self._until = _bound(self._options["untilOffsets"])
        self._target: Positions | None = None
        self._latest: Positions | None = None
        self._ids: dict[str, TopicId] = {}
        self._initial: dict[str, dict[str, Any]] | None = None
        self._nowhere: ConfigError | TopicReplacedError | None = None
        """Why there is no initial offset."""
        self._last_trigger: float | None = None
        self._leases: list[HeldLease] = []

    def __getstate__(self) -> dict[str, Any]:
        """What travels: everything but the connection and what is held by it."""
        return {**self.__dict__, "_cluster": None, "_leases": [], "_nowhere": None}

    # ---- offsets ---------------------------------------------------------------------------------------------

    def initialOffset(self) -> dict[str, dict[str, Any]]:  # noqa: N802
        """Where a new query starts. Spark asks again when it plans the first batch, and after a restart in it.

        That batch knows where it began, so that options which are refused by now, for a partition has come that they do
        not name, are an error only for who needs them.
        """
        ranges = self._ranges()
        tps = self._partitions(ranges)
        start: Positions = {}
        self._nowhere = None
        try:
            start = ranges.start(tps, LATEST)
        except (ConfigError, TopicReplacedError) as error:
            self._nowhere = error
        self._initial = to_json(start, ranges.ids)
        return self._initial

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """One of the limits that the options set; all of them are applied when Spark hands it back."""
        limits = self._limits
        if limits.max_offsets is not None:
            return ReadMaxRows(limits.max_offsets)
        if limits.max_bytes is not None:
            return ReadMaxBytes(limits.max_bytes)
        if limits.min_offsets is not None:
            return ReadMinRows(limits.min_offsets)
        return ReadAllAvailable()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, dict[str, Any]]:  # noqa: N802
        """Where the next micro-batch ends; `start` itself when there is nothing to do yet.

        Raises DataLossError when the log is shorter than what was already read, or a partition is gone,
        TopicReplacedError when a topic is another one of the same name, ConfigError where a new query cannot start.
        """
        self._check_initial(start)
        ranges = self._ranges()
        tps = self._partitions(ranges)
        begin = self._of_the_same(from_json(start), ids_from_json(start), ranges.ids)
        end = self._newest(ranges, tps, begin)
        if end == begin == from_json(start):
            return start
        begin = {tp: begin.get(tp, 0) for tp in end}
        waiting = sum(max(0, end[tp] - begin[tp]) for tp in end)
        if not isinstance(limit, ReadAllAvailable) and self._limits.any:
            if self._must_wait(waiting):
                return start
            end = self._cut(begin, end)
        if waiting:
            self._last_trigger = time.monotonic()
        return to_json(end, {**ids_from_json(start), **ranges.ids}, begin if start == self._initial else None)

    def reportLatestOffset(self) -> dict[str, dict[str, Any]] | None:  # noqa: N802
        """The log's end as it was last seen: with it, the query's progress shows how far it lags behind."""
        return None if self._latest is None else to_json(self._latest, self._ids)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """From now on nothing beyond the present end is read."""
        ranges = self._ranges()
        self._target = ranges.latest(self._partitions(ranges))

    # ---- one micro-batch -------------------------------------------------------------------------------------

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """The splits of one micro-batch. Raises DataLossError naming offsets that the log does not hold any more."""
        if start == end:
            return []  # so Spark tells how far a query was
        until = from_json(end)
        ids = ids_from_json(end)
        # Of the first batch, `start` is the initial offset as it is by now: the latest one has moved since.
        first = first_from_json(end)
        if first is None:
            self._check_initial(start)
        begin = self._of_the_same(first or from_json(start), ids_from_json(start), ids)
        # A partition that is new to the query is read from its first offset, whenever the batch is planned again.
        begin = {tp: begin.get(tp, 0) for tp in until}
        moved = {tp: offset for tp, offset in until.items() if offset > begin[tp]}
        if not moved:
            return []
        how = cutting(self._options)
        ranges = self._ranges()
        assert self._cluster is not None
        found = layout(self._cluster, begin, moved, how.target_bytes, self._settings.read_from)
        self._leases += found.storage.leases
        untold = [tp for tp in moved if tp not in found.log_starts]
        earliest = {**found.log_starts, **self._log_starts(ranges, untold, begin, moved)}
        moved = {tp: moved[tp] for tp in earliest}
        known = behind_losses({tp: begin[tp] for tp in moved}, moved, earliest, fail=self._settings.fail_on_data_loss)
        return list(packed(assign(identified(splits(known, moved, found.curves, how), ids), found.storage), how))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of what was planned for one task."""
        from duramen.spark.source.tasks import read_splits  # only tasks decode

        return read_splits(splits_of(partition), self._settings, self._schema)

    def commit(self, end: dict[str, Any]) -> None:
        """Let the segments of finished micro-batches go; what was read is known from the checkpoint."""
        self._release()

    def stop(self) -> None:
        """Let everything go and hang up."""
        if self._cluster is not None:
            self._release()
            self._cluster.close()
            self._cluster = None

    def _release(self) -> None:
        leases, self._leases = self._leases, []
        if leases and self._cluster is not None:
            with contextlib.suppress(KafkaError, NetworkError, DeadlineError):  # they end by themselves, only later
                release_leases(self._cluster, leases)

    # ---- within ----------------------------------------------------------------------------------------------

    def _ranges(self) -> OffsetRanges:
        if self._cluster is None:
            self._cluster = self._settings.connect_first()
        return OffsetRanges(self._cluster, self._options, self._settings.isolation)

    def _partitions(self, ranges: OffsetRanges) -> list[TopicPartition]:
        assert self._cluster is not None
        return only_of_key(ranges.partitions(), self._cluster, self._options, self._settings)

    def _check_initial(self, start: dict[str, Any]) -> None:
        """Raises ConfigError or TopicReplacedError where this is the initial offset, and there is none."""
        if self._nowhere is not None and start == self._initial:
            raise self._nowhere

    def _of_the_same(self, begin: Positions, then: Mapping[str, TopicId], now: Mapping[str, TopicId]) -> Positions:
        """Without the topics that are others now: what is new to a query is read from its first record."""
        others = {name for name, topic_id in then.items() if now.get(name, NO_TOPIC_ID) not in (NO_TOPIC_ID, topic_id)}
        for name in sorted(others):
            replaced(name, fail=self._settings.fail_on_data_loss)
        return {tp: at for tp, at in begin.items() if tp.topic not in others}

    def _log_starts(
        self, ranges: OffsetRanges, tps: list[TopicPartition], begin: Positions, until: Positions
    ) -> Positions:
        """Where the logs of these partitions start; what was planned of those that were deleted meanwhile is lost."""
        try:
            return ranges.earliest(tps)
        except KafkaError as error:
            if error.code not in GONE:
                raise
        gone = ranges.gone(tps)
        for tp in sorted(gone):
            lost(tp, begin[tp], until[tp], IS_GONE, fail=self._settings.fail_on_data_loss)
        return ranges.earliest(tp for tp in tps if tp not in gone)

    def _newest(self, ranges: OffsetRanges, tps: list[TopicPartition], begin: Positions) -> Positions:
        """The end of every partition, or the target of an available-now query where that is nearer."""
        fail = self._settings.fail_on_data_loss
        latest = ranges.latest(tps)
        beyond = {tp: at for tp, at in begin.items() if at > latest.get(tp, at)}
        self._latest, self._ids = {**latest, **ranges.in_open(beyond)}, ranges.ids
        left = self._left(ranges, tps, {tp: at for tp, at in begin.items() if tp not in self._latest})
        end = {}
        for tp, newest in self._latest.items():
            if tp in begin and newest < begin[tp]:
                reason = (
                    f"the log ends at offset {newest}, behind which it was already read: it was cut off or made anew"
                )
                lost(tp, newest, begin[tp], reason, fail=fail)
            end[tp] = newest
        if self._target is not None:
            end = {tp: min(end[tp], self._target[tp]) for tp in end if tp in self._target}
            end = {tp: max(offset, min(begin.get(tp, 0), self._latest[tp])) for tp, offset in end.items()}
        if self._until is not None:
            # What was read beyond it stays read: offsets never go back.
            end = {
                tp: min(at, max(self._until.get(tp, 0), begin.get(tp, 0)))
                for tp, at in end.items()
                if tp in self._until or tp in begin
            }
        return {**end, **left}

    def _left(self, ranges: OffsetRanges, tps: list[TopicPartition], left: Positions) -> Positions:
        """Of partitions that were read until now those that the options do not choose any more, where they stand: they
        go on there if they are chosen again. Others are gone, and lost with all from there on."""
        for tp, at in sorted(left.items()):
            if not ranges.chooses(tp):
                continue
            if self._options["keyPartitioner"] != "none" and any(other.topic == tp.topic for other in tps):
                raise ConfigError(
                    f"keyPartitioner: {tp.topic} has more partitions than when this query began, and keyEquals is "
                    f"found elsewhere than in {tp.partition} now: leave keyPartitioner away, and all of them are read"
                )
            lost(tp, at, None, IS_GONE, fail=self._settings.fail_on_data_loss)
        return {tp: at for tp, at in left.items() if not ranges.chooses(tp)}

    def _must_wait(self, waiting: int) -> bool:
        """Whether too little is there for `minOffsetsPerTrigger`.

        A query that ends somewhere does not wait, nor does the first batch of a run, as in Spark's own source: who is
        started now and then gets what there is.
        """
        least = self._limits.min_offsets
        bounded = self._target is not None or self._until is not None
        if least is None or bounded or waiting >= least or self._last_trigger is None:
            return False
        return (time.monotonic() - self._last_trigger) * 1000 < self._limits.max_delay_ms

    def _cut(self, begin: Positions, end: Positions) -> Positions:
        if self._limits.max_offsets is not None:
            end = by_offsets(begin, end, self._limits.max_offsets)
        moved = {tp: offset for tp, offset in end.items() if offset > begin[tp]}
        if self._limits.max_bytes is not None and moved:
            end = {**end, **self._cut_bytes(begin, moved, self._limits.max_bytes)}
        return end

    def _cut_bytes(self, begin: Positions, end: Positions, most: int) -> Positions:
        """What is waiting may be the whole history: boundaries are asked for only as far as this batch may reach."""
        assert self._cluster is not None
        rough = layout(self._cluster, begin, end, 0).curves
        near = by_bytes(begin, end, byte_shares(begin, end, _AHEAD * most, rough), rough)
        # Within a segment bytes need not be spread evenly: also what seems to fit is looked at.
        looked = layout(self._cluster, begin, {tp: near[tp] for tp in rough}, max(1, most // len(end))).curves
        exact = {**rough, **looked}
        return by_bytes(begin, near, byte_shares(begin, near, most, exact), exact)


def _bound(given: Mapping[str, Mapping[int, int]] | None) -> Positions | None:
    if given is None:
        return None
    return {TopicPartition(topic, number): at for topic, each in given.items() for number, at in each.items()}
