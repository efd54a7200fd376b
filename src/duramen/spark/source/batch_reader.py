"""`spark.read.format("duramen")`: a range of offsets, planned once on the driver and read by tasks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from duramen.client import EARLIEST, LATEST, Cluster
from duramen.errors import ConfigError
from duramen.model import TopicPartition
from duramen.spark.codec.schema import arrow_schema
from duramen.spark.options.first_contact import reached
from duramen.spark.options.options import BATCH, parse
from duramen.spark.options.positions import Positions
from duramen.spark.source.data_loss import lost
from duramen.spark.source.offset_ranges import OffsetRanges
from duramen.spark.source.plan import Pack, Split, identified, packed, splits, splits_of
from duramen.spark.source.settings import SourceSettings, cutting, settings
from duramen.spark.source.sizes import layout
from duramen.spark.source.storage_plan import assign


class DuramenReader(DataSourceReader):
    """One batch query. It travels to the tasks, so that it holds plain values only."""

    def __init__(self, given: Mapping[str, str], schema: StructType) -> None:
        self._options = parse(given, BATCH)
        self._settings = settings(self._options)
        self._schema = arrow_schema(schema, self._options)
        _check_range(self._options)

    def partitions(self) -> list[InputPartition]:
        """The splits. Raises DataLossError for offsets asked for that the log does not hold any more."""
        with self._settings.connect_first() as cluster:
            planned: list[InputPartition] = list(self._plan(cluster))
        reached(self._settings.bootstrap)
        return planned

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of what was planned for one task; Spark calls it with something else when there is none."""
        from duramen.spark.source.tasks import read_splits  # only tasks decode

        return read_splits(splits_of(partition), self._settings, self._schema)

    def _plan(self, cluster: Cluster) -> list[Split | Pack]:
        ranges = OffsetRanges(cluster, self._options, self._settings.isolation)
        tps = ranges.partitions()
        tps = only_of_key(tps, cluster, self._options, self._settings)
        latest = ranges.latest(tps)
        end = ranges.end(tps)
        fail = self._settings.fail_on_data_loss
        for tp in tps:
            if end[tp] > latest[tp]:
                if fail:
                    raise ConfigError(f"endingOffsets: {tp} ends at {latest[tp]}, so that {end[tp]} is not there yet")
                end[tp] = latest[tp]
        how = cutting(self._options)
        known = None
        if ranges.from_earliest and self._settings.timestamps is None:
            # Where logs start comes with their segments: one question less.
            known = layout(cluster, dict.fromkeys(tps, 0), end, how.target_bytes, self._settings.read_from)
            ranges.told_starts(known.log_starts)
        start = ranges.start(tps, EARLIEST)
        waits = ranges.in_open({tp: at for tp, at in start.items() if at > latest[tp]})
        for tp in tps:
            if start[tp] > latest[tp] and tp not in waits:
                reason = f"the log ends at offset {latest[tp]}"
                lost(tp, latest[tp], start[tp], reason, fail=fail)
        earliest = ranges.earliest(tps)
        start = behind_losses(start, end, earliest, fail=fail)
        if self._settings.timestamps is not None:
            start, end = self._within(self._settings.timestamps, ranges, start, end)
        if known is None:
            known = layout(cluster, start, end, how.target_bytes, self._settings.read_from)
        return packed(assign(identified(splits(start, end, known.curves, how), ranges.ids), known.storage), how)

    def _within(
        self, times: tuple[int, int], ranges: OffsetRanges, start: Positions, end: Positions
    ) -> tuple[Positions, Positions]:
        """The least of these ranges that holds every record of that time.

        All before the first record that is young enough is too old. All behind the first that is too young need not be
        so: producers' clocks differ, so that only the option `timestampLateness` gives an end.
        """
        since, until = times
        tps = list(end)
        if since >= 0:  # else records without a time, -1, may be in it, and those cannot be asked for
            young = ranges.since(tps, since)
            start = {tp: max(start[tp], young[tp]) for tp in tps}
        lateness = self._options["timestampLateness"]
        if lateness is not None and until + lateness < 2**63:
            beyond = ranges.since(tps, until + lateness)
            end = {tp: min(end[tp], beyond[tp]) for tp in tps}
        return start, end


def behind_losses(start: Positions, end: Positions, earliest: Positions, *, fail: bool) -> Positions:
    """`start`, moved behind what is gone where `fail` is false. Raises DataLossError naming the range otherwise."""
    moved = dict(start)
    for tp, first in earliest.items():
        if start[tp] < first and start[tp] < end[tp]:
            lost(tp, start[tp], min(first, end[tp]), f"the log starts at offset {first}", fail=fail)
            moved[tp] = first
    return moved


def only_of_key(
    tps: list[TopicPartition], cluster: Cluster, options: Mapping[str, Any], settings: SourceSettings
) -> list[TopicPartition]:
    """The partitions in which Kafka's default partitioner puts the wanted key, where the query vouches for that."""
    if settings.key is None or options["keyPartitioner"] != "murmur2":
        return tps
    from duramen.spark.codec.partitioner import murmur2  # with all that encodes

    hashed = murmur2(settings.key) & 0x7FFFFFFF
    home = {topic: hashed % len(cluster.partitions(topic)) for topic in {tp.topic for tp in tps}}
    return [tp for tp in tps if tp.partition == home[tp.topic]]


def _check_range(options: Mapping[str, Any]) -> None:
    """ConfigError for a start and an end between which nothing can lie, as far as the options alone tell."""
    first, start = _said(options, "starting")
    last, end = _said(options, "ending")
    if first == "startingOffsets" and any(offset == LATEST for _, offset in _each(start)):
        raise ConfigError("startingOffsets of a batch query must not be latest (-1): it would read nothing")
    ends = dict(_each(end))
    for place, at in _each(start) if first.removeprefix("starting") == last.removeprefix("ending") else ():
        if at > ends.get(place, at) >= 0:
            raise ConfigError(f"{first}{place} is {at}, behind {last}, which is {ends[place]}")


def _said(options: Mapping[str, Any], side: str) -> tuple[str, Any]:
    """The option that counts for one side of the range, and its value."""
    names = [f"{side}Timestamp", f"{side}OffsetsByTimestamp", f"{side}Offsets"]
    return next(
        ((name, options[name]) for name in names[:2] if options[name] is not None), (names[2], options[names[2]])
    )


def _each(value: Any) -> Iterator[tuple[str, int]]:
    """The numbers of such a value, by the partition that each is for; "" for all."""
    if isinstance(value, int):
        yield "", value
    elif value is not None:
        for topic, numbers in value.items():
            yield from ((f" of {topic}-{number}", at) for number, at in numbers.items())
