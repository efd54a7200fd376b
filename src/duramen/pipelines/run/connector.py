"""Where a pipeline's records come from and go to: Duramen by `format("duramen")`, anything else in tests."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Protocol

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

from duramen.client import Cluster
from duramen.model import NO_TOPIC_ID, TopicId
from duramen.pipelines.jvm.session import make_active
from duramen.pipelines.model.declaration import Pipeline, TableChanges, Topic
from duramen.pipelines.model.folders import StepFolder
from duramen.pipelines.model.offsets import Offsets
from duramen.pipelines.run.cluster import PipelineNode, UnreachableError
from duramen.spark.options.options import STREAM, parse
from duramen.spark.options.positions import TOPIC_ID, Positions
from duramen.spark.source.batch_reader import only_of_key
from duramen.spark.source.offset_ranges import OffsetRanges
from duramen.spark.source.settings import settings
from duramen.swaps import CutOver, SwapLog

CHOOSES_TOPICS = {"assign", "subscribe", "subscribepattern"}
"""Options that name other topics than the source's own: its swaps are not theirs."""


class Connector(Protocol):
    """Opens topics of one cluster for Spark."""

    def read(
        self, spark: SparkSession, topic: Topic, start: Offsets, until: Offsets | None, topic_id: str = ""
    ) -> DataFrame:
        """The topic as a stream with the columns of Spark's Kafka source, from `start`, elsewhere from the earliest.

        until: nothing from there on is read, nor of a partition that is not in it. topic_id: of the topic that `start`
        is meant in; another one of its name ends the query.
        """

    def create(self, topic: str, like: str | None, *, settings: bool = False, compacted: bool = False) -> None:
        """Create a topic that is not there with as many partitions as `like` has, as the cluster does where it is None,
        and the settings of `like` where `settings` says so."""

    def write(self, records: DataFrame, topic: str | None, sink: str) -> DataStreamWriter:
        """A writer of `key` and `value` into the topic; None: each record names its own. sink: names it for
        exactly-once."""

    def write_batch(self, records: DataFrame, topic: str | None, sink: str, batch: int) -> None:
        """Write one batch of a stream into the topic, once however often it is called with this number."""

    def written(self, sink: str) -> int | None:
        """The last batch that came under this name; None where none did."""

    def cuts(self, topic: str) -> Sequence[CutOver]:
        """Which topics have taken over from this one, as the cluster tells it now."""

    def publish(self, topic: str, cuts: Sequence[CutOver]) -> None:
        """Let the cluster tell these; nothing where it does already."""


def cuts_of(pipeline: Pipeline, topic: Topic, connector: Connector) -> Sequence[CutOver]:
    """The swaps of a source: of a stream of this pipeline from its folder, of any other topic from the node.

    The changes of a table have none: where its step is swapped, what reads them ends (`run/changes.py`)."""
    if isinstance(topic, TableChanges):
        return ()
    if topic.stream is not None:
        return StepFolder(pipeline.folder, topic.stream).current().cuts
    return () if chooses_topics(topic) else connector.cuts(topic.name)


def chooses_topics(topic: Topic) -> bool:
    """Whether the source's options say what is read, instead of its name."""
    return bool(CHOOSES_TOPICS & {name.lower() for name in topic.options})


class DuramenConnector:
    """Topics of a node."""

    def __init__(self, bootstrap: str, patience_s: float = 5.0) -> None:
        """patience_s: how long the node may be away when it is asked for swaps."""
        self.bootstrap = bootstrap
        self.patience_s = patience_s

    def read(
        self, spark: SparkSession, topic: Topic, start: Offsets, until: Offsets | None, topic_id: str = ""
    ) -> DataFrame:
        """See Connector. The topic's own options win, but for where a step goes on behind a cut."""
        given = dict(topic.options)
        begin = {p: end for (_, p), end in start.of(topic.name)}
        if begin:
            # -2 is Kafka's number for the earliest: where partitions begin that came after the cut.
            there = PipelineNode(self.bootstrap).ends(topic.name)
            if not there:
                raise UnreachableError(
                    f"there is no topic {topic.name} at {self.bootstrap} to go on with behind its cut"
                )
            begin = {p: begin.get(p, -2) for (_, p), _ in there}
            meant = {TOPIC_ID: topic_id} if topic_id else {}
            given = {name: value for name, value in given.items() if not name.lower().startswith("starting")}
        options = {
            "kafka.bootstrap.servers": self.bootstrap,
            **({} if chooses_topics(topic) else {"subscribe": topic.name}),
            "startingOffsets": json.dumps({topic.name: {**{str(p): at for p, at in begin.items()}, **meant}})
            if begin
            else "earliest",
            **given,
        }
        if until is not None:
            options["untilOffsets"] = json.dumps(until.to_json())
        return spark.readStream.format("duramen").options(**options).load()

    def create(self, topic: str, like: str | None, *, settings: bool = False, compacted: bool = False) -> None:
        """See Connector."""
        PipelineNode(self.bootstrap).create_like(topic, like, settings=settings, compacted=compacted)

    def write(self, records: DataFrame, topic: str | None, sink: str) -> DataStreamWriter:
        """See Connector."""
        make_active(records.sparkSession)
        return records.writeStream.format("duramen").options(**self._sink(topic, sink))

    def write_batch(self, records: DataFrame, topic: str | None, sink: str, batch: int) -> None:
        """See Connector. The node knows the number of the last batch."""
        writer = records.write.format("duramen").options(**self._sink(topic, sink), batchId=str(batch))
        writer.mode("append").save()

    def _sink(self, topic: str | None, sink: str) -> dict[str, str]:
        to = {} if topic is None else {"topic": topic}
        return {"kafka.bootstrap.servers": self.bootstrap, "sinkId": sink, **to}

    def written(self, sink: str) -> int | None:
        """See Connector."""
        return PipelineNode(self.bootstrap).written(sink)

    def cuts(self, topic: str) -> Sequence[CutOver]:
        """See Connector."""
        with Cluster(self.bootstrap, timeout_s=self.patience_s) as cluster:
            return SwapLog(cluster).cuts(topic)

    def publish(self, topic: str, cuts: Sequence[CutOver]) -> None:
        """See Connector."""
        with Cluster(self.bootstrap, timeout_s=self.patience_s) as cluster:
            SwapLog(cluster).publish(topic, cuts)

    def chosen(self, topic: Topic) -> tuple[Offsets, Offsets]:
        """Starts and ends of the partitions that the options of a source choose now, as its query asks for them."""
        options = parse({"kafka.bootstrap.servers": self.bootstrap, **topic.options}, STREAM)
        asked = settings(options)
        with asked.connect_first() as cluster:
            ranges = OffsetRanges(cluster, options, asked.isolation)
            tps = only_of_key(ranges.partitions(), cluster, options, asked)
            return _offsets(ranges.earliest(tps)), _offsets(ranges.latest(tps))

    def replaced(self, ids: Mapping[str, TopicId]) -> list[str]:
        """Those of these topics that have another id by now: they were deleted and made anew."""
        if not ids:
            return []
        with Cluster(self.bootstrap, timeout_s=self.patience_s) as cluster:
            found = cluster.metadata(ids).topics
        return sorted(name for name, known in ids.items() if found[name].topic_id not in (NO_TOPIC_ID, known))


def _offsets(positions: Positions) -> Offsets:
    return Offsets({(tp.topic, tp.partition): at for tp, at in positions.items()})
