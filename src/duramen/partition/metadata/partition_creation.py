"""Creation of the partitions that committed metadata wants on this node, in jobs off the loop.

A topic that lacks room is not half made: where no other node has copies, one that was just created is deleted again.
Partitions that an older one was to get, that a start was to make after a crash, or that others have, too, are offline
until there is room for them. After any other error the next start tries again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Protocol

from duramen.config import TopicConfig
from duramen.errors import DuramenError, ErrorCode, KafkaError
from duramen.machines.metadata.commands import Result, TopicCreated
from duramen.machines.metadata.image import MetadataImage, TopicImage
from duramen.model import SINK_TOPICS, LogKey, TopicId, TopicPartition
from duramen.partition.metadata.snapshots import Report
from duramen.partition.store.create_partitions import Wanted, create_partitions
from duramen.partition.store.hosted_partitions import HostedState, OfflineCause
from duramen.partition.store.store import Store
from duramen.ports import Clock
from duramen.storage import NoRoomError

CREATED_AT_ONCE = 200
"""Partitions made by one job; others get their turn in between, and a crash leaves less to do."""
RETRY_SECONDS = 1.0
"""After which what lacked room is tried again."""

Withdraw = Callable[[TopicId, Callable[[Any], None]], None]
"""Has a topic deleted; the callback takes the answer, a DuramenError where it is not committed."""


class CommittedMetadata(Protocol):
    """What a creation goes by, and whom it gives what it made."""

    @property
    def image(self) -> MetadataImage: ...

    def topic_config(self, name: str) -> TopicConfig: ...

    def configure(self, name: str) -> None:
        """Partitions of the topic were made; its settings may be other ones by now."""

    def lead(self, topic: TopicImage) -> None:
        """No partition of the topic is to be made any more."""


class PartitionCreation:
    """Of one publisher. Loop thread only.

    withdraw: deletes a new topic that lacks room; set by who can have metadata changed, where no other node has copies.
    """

    def __init__(self, metadata: CommittedMetadata, store: Store, node_id: int, clock: Clock, report: Report) -> None:
        self._metadata = metadata
        self._store = store
        self._hosted = store.hosted
        self._node_id = node_id
        self._clock = clock
        self._report = report
        self.withdraw: Withdraw | None = None
        self._queue: dict[TopicId, bool] = {}
        """Topics to look at, and whether the topic is new: nothing may be written to it before all of it is there."""
        self._job: list[LogKey] = []
        """What is being made now."""
        self._retries: set[TopicId] = set()
        """Topics for which a timer runs."""
        self._withdrawn: dict[TopicId, str | None] = {}
        """New topics that are deleted again, and why, until their creator has the reason."""
        self._when_done: list[Callable[[], None]] = []

    # ---- what is to be made ----------------------------------------------------------------------------------

    def queue_topic(self, topic_id: TopicId, *, is_new: bool) -> None:
        """The topic may lack partitions here; `create_next` looks."""
        self._queue[topic_id] = is_new or self._queue.get(topic_id, False)

    def holds(self, topic_id: TopicId) -> bool:
        """Whether nothing may be written to the topic, for it may have to be deleted again."""
        return self._queue.get(topic_id, False) or topic_id in self._withdrawn

    def create_next(self) -> None:
        """Make the partitions that topics of the image lack here, off the loop, a slice at a time.

        One job is under way at a time, and the next goes by the image of its time: a topic that is deleted and created
        again meanwhile never meets its predecessor's directory.
        """
        if self._job or not self._store.deletions.is_over:
            return
        wanted: list[Wanted] = []
        for topic_id in list(self._queue):
            missing = self._missing(topic_id)
            if not missing:
                del self._queue[topic_id]
                topic = self._metadata.image.topic_by_id(topic_id)
                if topic is not None:
                    self._metadata.lead(topic)
            wanted += missing[: CREATED_AT_ONCE - len(wanted)]
        if not wanted:
            waiting, self._when_done = self._when_done, []
            for callback in waiting:
                callback()
            return
        self._job = [(topic_id, tp.partition) for tp, topic_id, _ in wanted]
        create_partitions(self._store, wanted, partial(self._created, wanted))

    def _missing(self, topic_id: TopicId) -> list[Wanted]:
        topic = self._metadata.image.topic_by_id(topic_id)
        if topic is None:
            return []
        config = self._metadata.topic_config(topic.name)
        hosted = self._hosted
        missing = [
            (TopicPartition(topic.name, index), topic_id, config)
            for index, image in enumerate(topic.partitions)
            if self._node_id in image.replicas and hosted.is_wanted((topic_id, index))
        ]
        for tp, _, _ in missing:
            hosted.mark_creating((topic_id, tp.partition))
        return missing

    def _created(self, wanted: list[Wanted], errors: Mapping[LogKey, BaseException]) -> None:
        self._job = []
        image = self._metadata.image
        for tp, topic_id, _ in wanted:
            key = topic_id, tp.partition
            is_known = image.topic_by_id(topic_id) is not None
            error = errors.get(key)
            if error is not None:
                if not is_known:
                    self._hosted.forget(key)
                if not is_known or self._not_created(tp, key, error):
                    self._report("partition-offline", topic=tp.topic, partition=tp.partition, error=error)
            elif not is_known:
                self._store.delete_partition(tp)
        for topic in filter(None, map(image.topic_by_id, dict.fromkeys(each[1] for each in wanted))):
            self._metadata.configure(topic.name)
        self.create_next()

    def when_done(self, callback: Callable[[], None]) -> None:
        """Call back once no committed partition is still being made or deleted: now, or with the last one."""
        if self._job or self._queue or not self._store.deletions.is_over:
            self._when_done.append(callback)
        else:
            callback()

    def forget_topic(self, topic_id: TopicId) -> None:
        """The topic is deleted; what is being made of it now goes when it is made."""
        for key in [key for key in self._hosted.keys_in(HostedState.CREATING) if key[0] == topic_id]:
            if key not in self._job:
                self._hosted.forget(key)
        if self._withdrawn.get(topic_id, "") is None:
            del self._withdrawn[topic_id]

    # ---- what could not be made ------------------------------------------------------------------------------

    def not_opened(self, tp: TopicPartition, key: LogKey, error: BaseException) -> None:
        """A start could not open the partition, or make it where a crash came before that."""
        known = self._hosted.get(key)
        if known is not None and known.cause is OfflineCause.LOG_DAMAGED:
            return
        lacking = error if isinstance(error, NoRoomError) else error.__cause__
        if isinstance(lacking, NoRoomError):
            self._not_created(tp, key, lacking)

    def _not_created(self, tp: TopicPartition, key: LogKey, error: BaseException) -> bool:
        """The partition is offline; returns whether that is news."""
        topic_id = key[0]
        known = self._hosted.get(key)
        is_news = known is None or known.state is not HostedState.CREATING or known.reason is None
        reason = f"{tp} could not be made: {error}"
        lacks_room = isinstance(error, NoRoomError | KafkaError)  # the disk, or the journal; nothing of it is left
        # Topics of sinks are not deleted, nor what other nodes have copies of.
        is_withdrawn = self.withdraw is not None and self.holds(topic_id) and tp.topic not in SINK_TOPICS
        retry = lacks_room and not is_withdrawn
        self._hosted.mark_offline(key, OfflineCause.NOT_CREATED, reason, retry=retry)
        if retry and topic_id not in self._retries:
            self._retries.add(topic_id)
            self._clock.call_later(RETRY_SECONDS, partial(self._retry, topic_id))
        elif lacks_room and is_withdrawn and topic_id not in self._withdrawn:
            self._withdrawn[topic_id] = reason
            self._withdraw(topic_id)
        return is_news

    def _withdraw(self, topic_id: TopicId) -> None:
        if self.withdraw is not None and self._metadata.image.topic_by_id(topic_id) is not None:
            self.withdraw(topic_id, partial(self._withdrawal_answered, topic_id))

    def _withdrawal_answered(self, topic_id: TopicId, answer: Any) -> None:
        if isinstance(answer, DuramenError):  # there is no room for that, either
            self._clock.call_later(RETRY_SECONDS, partial(self._withdraw, topic_id))

    def _retry(self, topic_id: TopicId) -> None:
        self._retries.discard(topic_id)
        for key in self._hosted.to_retry(topic_id):
            self._hosted.mark_creating(key)
        self.queue_topic(topic_id, is_new=False)
        self.create_next()

    # ---- answers ---------------------------------------------------------------------------------------------

    def with_errors(self, answer: Any) -> Any:
        """The machine's answer to a change, but for topics that are committed and still cannot be used."""
        return [self._with_error(each) for each in answer] if isinstance(answer, list) else answer

    def _with_error(self, each: Any) -> Any:
        """Of CreateTopics, or a pair of name and result of CreatePartitions."""
        if isinstance(each, TopicCreated):
            reason = self._withdrawal(each.topic_id) or self._creation_error(each.topic_id)
            failed = reason is not None and each.result.error is ErrorCode.NONE
            return each._replace(result=Result(ErrorCode.KAFKA_STORAGE_ERROR, reason)) if failed else each
        name, result = each
        topic = self._metadata.image.topic(name)
        reason = None if topic is None or result.error is not ErrorCode.NONE else self._creation_error(topic.id)
        return each if reason is None else (name, Result(ErrorCode.KAFKA_STORAGE_ERROR, reason))

    def _creation_error(self, topic_id: TopicId) -> str | None:
        """Why a partition that is to be led here could not be made; a copy may come later."""
        topic = self._metadata.image.topic_by_id(topic_id)
        led = () if topic is None else enumerate(topic.partitions)
        return self._hosted.creation_error(topic_id, {index for index, each in led if each.leader == self._node_id})

    def _withdrawal(self, topic_id: TopicId) -> str | None:
        """Why the topic is deleted again, once."""
        reason = self._withdrawn.get(topic_id)
        if reason is not None:
            self._withdrawn[topic_id] = None
            if self._metadata.image.topic_by_id(topic_id) is None:
                del self._withdrawn[topic_id]
        return reason
