"""Where a query starts and ends: topics to partitions, options to offsets, checked against what the log still holds."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, TypeVar

from duramen.client import EARLIEST, LATEST, Cluster
from duramen.errors import ConfigError, DeadlineError, ErrorCode, KafkaError, NetworkError, NothingThereError
from duramen.model import NO_TOPIC_ID, TopicId, TopicPartition
from duramen.spark.options.option_types import TopicOffsets
from duramen.spark.options.positions import Positions
from duramen.spark.source.data_loss import not_meant

GONE: Final = (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID, ErrorCode.INCONSISTENT_TOPIC_ID)
"""What is answered about a topic or a partition that was deleted."""

_Answer = TypeVar("_Answer")


class OffsetRanges:
    """The driver's questions to one cluster, by the options of one query.

    Where logs start and end is asked once: what is decided by one object is decided by one view of them.
    """

    def __init__(self, cluster: Cluster, options: Mapping[str, Any], isolation: int) -> None:
        self._cluster = cluster
        self._options = options
        self._isolation = isolation
        self.ids: dict[str, TopicId] = {}
        """The ids of the topics that `partitions` found; zeros where the cluster has none."""
        self._known: dict[int, Positions] = {EARLIEST: {}, LATEST: {}}

    # ---- what to read ----------------------------------------------------------------------------------------

    def partitions(self) -> list[TopicPartition]:
        """The partitions that the options name, asked now.

        Raises ConfigError where not exactly one of assign, subscribe, subscribePattern is given, KafkaError
        UNKNOWN_TOPIC_OR_PARTITION for a topic that is not there.
        """
        options = self._options
        chosen = [name for name in ("assign", "subscribe", "subscribePattern") if options[name] is not None]
        if len(chosen) != 1:
            raise ConfigError(
                f"exactly one of assign, subscribe, subscribePattern must be set; set are {chosen or 'none'}"
            )
        if options["subscribePattern"] is not None:
            known = self._asked(lambda: self._cluster.metadata()).topics.values()
            wanted = re.compile(options["subscribePattern"])
            topics = [topic for topic in known if not topic.is_internal and wanted.search(topic.name)]
        else:
            names = options["subscribe"] or list(options["assign"])
            found = self._asked(lambda: self._cluster.metadata(names)).topics
            topics = [found[name] for name in names]
        for topic in topics:
            if topic.error:
                raise KafkaError(topic.error, f"topic {topic.name}: {_reason(topic.error)}")
        self.ids = {topic.name: topic.topic_id for topic in topics}
        there = [TopicPartition(topic.name, number) for topic in topics for number in sorted(topic.partitions)]
        if options["assign"] is None:
            return sorted(there)
        assigned = [TopicPartition(topic, number) for topic, numbers in options["assign"].items() for number in numbers]
        if missing := sorted(set(assigned) - set(there)):
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"assign names {missing[0]}, which does not exist")
        return sorted(assigned)

    def chooses(self, tp: TopicPartition) -> bool:
        """Whether the options name this partition, be it there or not."""
        options = self._options
        if options["assign"] is not None:
            return tp.partition in options["assign"].get(tp.topic, ())
        if options["subscribe"] is not None:
            return tp.topic in options["subscribe"]
        return re.search(options["subscribePattern"], tp.topic) is not None

    def earliest(self, tps: Iterable[TopicPartition]) -> Positions:
        """The log start of each."""
        return self._once(tps, EARLIEST)

    def told_starts(self, starts: Positions) -> None:
        """Take these for where logs start, instead of asking."""
        self._known[EARLIEST].update(starts)

    def latest(self, tps: Iterable[TopicPartition]) -> Positions:
        """The end of each: the high watermark, or the last stable offset for a reader of committed records."""
        return self._once(tps, LATEST)

    def gone(self, tps: Iterable[TopicPartition]) -> set[TopicPartition]:
        """Those of them that are not there any more, asked now."""
        wanted = list(tps)
        found = self._asked(lambda: self._cluster.metadata({tp.topic for tp in wanted})).topics
        return {
            tp
            for tp in wanted
            if found[tp.topic].error in GONE
            or not (found[tp.topic].error or tp.partition in found[tp.topic].partitions)
        }

    def in_open(self, beyond: Positions) -> Positions:
        """Of positions beyond the last stable offset those that the log has reached: they lie in open transactions.

        A query that read uncommitted records before, as Spark's own does, stands there. It waits, nothing is lost.
        """
        if not beyond:
            return {}
        ends = self._asked(lambda: self._cluster.list_offsets(dict.fromkeys(beyond, LATEST)))
        return {tp: at for tp, at in beyond.items() if at <= ends[tp].offset}

    # ---- by the options --------------------------------------------------------------------------------------

    @property
    def from_earliest(self) -> bool:
        """Whether the options have a batch query start where the logs do, whatever their partitions."""
        options = self._options
        timed = options["startingTimestamp"] is not None or options["startingOffsetsByTimestamp"] is not None
        return not timed and options["startingOffsets"] in (None, EARLIEST)

    def start(self, tps: list[TopicPartition], default: int) -> Positions:
        """Where a new query starts; `default` is EARLIEST or LATEST. Offsets that are gone are data loss."""
        options = self._options
        times = self._times(tps, "starting")
        if times is not None:
            found = self._timed(times)
            if late := sorted(tp for tp, offset in found.items() if offset < 0):
                if options["startingOffsetsByTimestampStrategy"] == "error":
                    raise ConfigError(
                        f"{late[0]} has no record at or after {times[late[0]]} ms; "
                        "set startingOffsetsByTimestampStrategy to latest to start at its end"
                    )
                found.update(self.latest(late))
            return found
        given = options["startingOffsets"]
        if given is None or isinstance(given, int):
            where = default if given is None else given
            return self.earliest(tps) if where == EARLIEST else self.latest(tps)
        return self._specific(tps, given, "startingOffsets")

    def end(self, tps: list[TopicPartition]) -> Positions:
        """Where a batch query ends (exclusive)."""
        given = self._options["endingOffsets"]
        times = self._times(tps, "ending")
        if times is not None:
            found = self._timed(times)
            beyond = [tp for tp, offset in found.items() if offset < 0]
            found.update(self.latest(beyond))
            return found
        if given == EARLIEST:
            raise ConfigError("endingOffsets must be latest or offsets: nothing ends at the earliest")
        if given == LATEST:
            return self.latest(tps)
        if any(offset == EARLIEST for numbers in given.values() for offset in numbers.values()):
            raise ConfigError("endingOffsets must not hold -2 (earliest)")
        return self._specific(tps, given, "endingOffsets")

    def since(self, tps: list[TopicPartition], timestamp: int) -> Positions:
        """The first offset whose timestamp is not below; the end where there is none."""
        found = self._timed(dict.fromkeys(tps, max(timestamp, 0)))
        found.update(self.latest([tp for tp, offset in found.items() if offset < 0]))
        return found

    def _times(self, tps: list[TopicPartition], side: str) -> Positions | None:
        one = self._options[f"{side}Timestamp"]
        if one is not None:
            return dict.fromkeys(tps, one)
        given = self._options[f"{side}OffsetsByTimestamp"]
        return None if given is None else self._complete(tps, given, f"{side}OffsetsByTimestamp")

    def _timed(self, times: Positions) -> Positions:
        """The first offset of each that is not older, -1 where there is none.

        A log's end that was asked for before stays its end: what has come since is for the next query.
        """
        ends = self._known[LATEST]
        return {tp: min(offset, ends.get(tp, offset)) for tp, offset in self._listed(times).items()}

    def _specific(self, tps: list[TopicPartition], given: TopicOffsets, name: str) -> Positions:
        other = self._not_meant(given, name)
        named = {topic: offsets for topic, offsets in given.items() if topic not in other}
        found = self._complete([tp for tp in tps if tp.topic not in other], named, name)
        found |= {tp: EARLIEST if name.startswith("starting") else LATEST for tp in tps if tp.topic in other}
        for where, ask in ((EARLIEST, self.earliest), (LATEST, self.latest)):
            if special := [tp for tp, offset in found.items() if offset == where]:
                found.update(ask(special))
        return found

    def _not_meant(self, given: TopicOffsets, name: str) -> set[str]:
        """The topics that are others than those whose ids stand beside the offsets: their offsets say nothing."""
        now = {topic: self.ids.get(topic, NO_TOPIC_ID) for topic in given.ids}
        other = {topic for topic, topic_id in given.ids.items() if now[topic] not in (NO_TOPIC_ID, topic_id)}
        for topic in sorted(other):
            not_meant(topic, name, fail=self._options["failOnDataLoss"])
        return other

    def _complete(self, tps: list[TopicPartition], given: Mapping[str, Mapping[int, int]], name: str) -> Positions:
        found = {TopicPartition(topic, number): at for topic, each in given.items() for number, at in each.items()}
        if set(found) != set(tps):
            missing, foreign = sorted(set(tps) - set(found)), sorted(set(found) - set(tps))
            what = f"leaves out {missing[0]}" if missing else f"names {foreign[0]}, which is not read"
            raise ConfigError(f"{name} must name every partition that is read and no other; it {what}")
        return found

    # ---- asking ----------------------------------------------------------------------------------------------

    def _once(self, tps: Iterable[TopicPartition], where: int) -> Positions:
        wanted = list(tps)
        known = self._known[where]
        known.update(self._listed({tp: where for tp in wanted if tp not in known}))
        return {tp: known[tp] for tp in wanted}

    def _listed(self, wanted: Mapping[TopicPartition, int]) -> Positions:
        if not wanted:
            return {}
        answer = self._asked(lambda: self._cluster.list_offsets(wanted, self._isolation))
        return {tp: each.offset for tp, each in answer.items()}

    def _asked(self, call: Callable[[], _Answer]) -> _Answer:
        """The answer, after `fetchOffset.numRetries` further attempts at most."""
        for _ in range(self._options["fetchOffset.numRetries"]):
            try:
                return call()
            except NothingThereError:
                raise
            except (DeadlineError, NetworkError):
                time.sleep(self._options["fetchOffset.retryIntervalMs"] / 1000)
        return call()


def _reason(code: ErrorCode) -> str:
    """Why the node names no partitions of a topic, and what can be done where it is not there."""
    if code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
        return "there is no such topic; `duramen topic list` shows those there are (UNKNOWN_TOPIC_OR_PARTITION)"
    return code.name
