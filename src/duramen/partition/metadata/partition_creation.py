"""Partitions that a committed change asks for and that could not be made: what is told, and what becomes of them.

For want of room nothing is half done: a topic that was just created is deleted again, and partitions that an older one
was to get, or that a start was to make behind a crash, are offline until there is room for them. After any other error
the next start tries again.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from duramen.errors import DuramenError, ErrorCode, KafkaError
from duramen.machines.metadata.commands import Result, TopicCreated
from duramen.model import SINK_TOPICS, LogKey, TopicId, TopicPartition
from duramen.ports import Clock
from duramen.storage import NoRoomError

if TYPE_CHECKING:
    from duramen.partition.metadata.publisher import MetadataPublisher

RETRY_SECONDS = 1.0


class Unmade:
    """Of one publisher; `make(topic id)` has it look again for what a topic lacks. Loop thread only."""

    def __init__(self, publisher: MetadataPublisher, clock: Clock, make: Callable[[TopicId], None]) -> None:
        self._publisher = publisher
        self._clock = clock
        self._make = make
        self._new: dict[TopicId, bool] = {}
        """Topics that nothing may be written to yet, and whether they are deleted again."""
        self._reasons: dict[LogKey, str] = {}
        self._again: dict[TopicId, list[int]] = {}
        """Partitions for which there was no room, and that are tried again."""
        self._taken_back: dict[TopicId, str] = {}
        """Why new topics are deleted again; until their creator is told."""

    def begins(self, topic_id: TopicId) -> None:
        """A topic was created, and none of its partitions is there."""
        self._new[topic_id] = False

    def ends(self, topic_id: TopicId) -> None:
        """Each partition of the topic was made or `add`ed: from now on it may hold records, or it goes again."""
        if not self._new.get(topic_id):
            self._new.pop(topic_id, None)

    def holds(self, topic_id: TopicId) -> bool:
        """Whether nothing may be written to the topic, for it may have to be deleted again."""
        return topic_id in self._new

    def made(self, key: LogKey) -> None:
        """The partition is there."""
        self._reasons.pop(key, None)

    def add(self, tp: TopicPartition, topic_id: TopicId, error: BaseException) -> bool:
        """A partition could not be made; returns whether that is news."""
        key = topic_id, tp.partition
        told = key in self._reasons
        reason = self._reasons[key] = f"{tp} could not be made: {error}"
        self._publisher.absent.add(*key)
        if isinstance(error, NoRoomError | KafkaError):  # the disk, or the journal; nothing of it is left
            if topic_id in self._new and tp.topic not in SINK_TOPICS:  # those are not deleted
                if not self._new[topic_id]:
                    self._new[topic_id] = True
                    self._taken_back[topic_id] = reason
                    self._take_back(topic_id)
            elif topic_id in self._again:
                self._again[topic_id].append(tp.partition)
            else:
                self._again[topic_id] = [tp.partition]
                self._clock.call_later(RETRY_SECONDS, partial(self._retry, topic_id))
        return not told

    def left_out(self, tp: TopicPartition, topic_id: TopicId, error: BaseException) -> None:
        """A start could not open the partition, or make it where a crash came before that."""
        lacking = error if isinstance(error, NoRoomError) else error.__cause__
        if isinstance(lacking, NoRoomError):
            self.add(tp, topic_id, lacking)
        elif not self._publisher.is_offline(topic_id, tp.partition):
            self._publisher.absent.add(topic_id, tp.partition)

    def forget(self, topic_id: TopicId) -> None:
        """The topic is gone."""
        self._new.pop(topic_id, None)
        self._again.pop(topic_id, None)
        self._reasons = {key: reason for key, reason in self._reasons.items() if key[0] != topic_id}

    def _take_back(self, topic_id: TopicId) -> None:
        if self._publisher.image.topic_by_id(topic_id) is not None:
            self._publisher.withdraw(topic_id, partial(self._answered, topic_id))

    def _answered(self, topic_id: TopicId, answer: Any) -> None:
        if isinstance(answer, DuramenError):  # there is no room for that, either
            self._clock.call_later(RETRY_SECONDS, partial(self._take_back, topic_id))

    def _retry(self, topic_id: TopicId) -> None:
        for index in self._again.pop(topic_id, ()):
            self._publisher.absent.remove(topic_id, index)
        self._make(topic_id)

    # ---- answers ---------------------------------------------------------------------------------------------

    def honest(self, answer: Any) -> Any:
        """The machine's answer to a change, but for topics that are committed and still cannot be used."""
        if not isinstance(answer, list) or not (self._reasons or self._taken_back):
            return answer
        return [self._honest(each) for each in answer]

    def _honest(self, each: Any) -> Any:
        """Of CreateTopics, or a pair of name and result of CreatePartitions."""
        if isinstance(each, TopicCreated):
            reason = self._taken_back.pop(each.topic_id, None) or self._reason(each.topic_id)
            failed = reason is not None and each.result.error is ErrorCode.NONE
            return each._replace(result=Result(ErrorCode.KAFKA_STORAGE_ERROR, reason)) if failed else each
        name, result = each
        topic = self._publisher.image.topic(name)
        reason = None if topic is None or result.error is not ErrorCode.NONE else self._reason(topic.id)
        return each if reason is None else (name, Result(ErrorCode.KAFKA_STORAGE_ERROR, reason))

    def _reason(self, topic_id: TopicId) -> str | None:
        return next((reason for key, reason in self._reasons.items() if key[0] == topic_id), None)
