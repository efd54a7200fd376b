"""The metadata as far as it is committed: what handlers read, and what changed for those who follow it.

A power cut or a newer leader can take back what is in the log and not yet committed. So nobody but the active
controller's machine sees that: not a client, not the partitions on disk, not a snapshot.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

from duramen.machines.contract import LogRecord, ProducerEpoch
from duramen.machines.metadata.application import Application
from duramen.machines.metadata.image import BROKER_RESOURCE, GROUP_RESOURCE, TOPIC_RESOURCE, MetadataImage
from duramen.model import TopicId


@dataclass(slots=True)
class Changes:
    """What committed records changed, for those who follow the image. Lists are in log order, without repetition."""

    created: list[TopicId] = field(default_factory=list)
    removed: list[tuple[str, TopicId]] = field(default_factory=list)
    partitions: list[TopicId] = field(default_factory=list)
    """Topics with partitions that are new or have another leader, epoch or replica set; created ones included."""
    topic_configs: list[str] = field(default_factory=list)
    broker_configs: list[str] = field(default_factory=list)
    """Resource names: a node id, or "" for the cluster-wide default."""
    brokers: list[int] = field(default_factory=list)
    group_configs: list[str] = field(default_factory=list)
    levels: list[tuple[str, int, int]] = field(default_factory=list)
    """Features with another level: the name, the level before and the level now. Not the first ones of a log."""

    def __bool__(self) -> bool:
        has_configs = self.topic_configs or self.broker_configs or self.group_configs
        has_topics = self.created or self.removed or self.partitions
        return bool(has_topics or self.brokers or has_configs or self.levels)


_OF_BROKERS: Final = ("RegisterBrokerRecord", "BrokerRegistrationChangeRecord", "UnregisterBrokerRecord")
_OF_PARTITIONS: Final = ("PartitionRecord", "PartitionChangeRecord")


class CommittedImage:
    """Applies committed records, which a reader of the log hands over in order, and gathers what they changed."""

    def __init__(self) -> None:
        self._application = Application(MetadataImage(), set())
        self._application.before = self._note
        self._created: dict[TopicId, None] = {}
        self._removed: list[tuple[str, TopicId]] = []
        self._partitions: dict[TopicId, None] = {}
        self._configs: dict[tuple[int, str], None] = {}
        self._brokers: dict[int, None] = {}
        self._levels: dict[str, int] = {}
        """Of the features, as it was told last."""

    @property
    def image(self) -> MetadataImage:
        """Everything that was handed over, but for a transaction that has not ended."""
        return self._application.image

    @property
    def held(self) -> list[tuple[str, Any]] | None:
        """Records of a transaction that has begun and not ended: see `Application`. Its own list."""
        held = self._application.held
        return None if held is None else held[:]

    @property
    def removed(self) -> frozenset[TopicId]:
        """Topics that were deleted since the snapshot with which the log began at the start: as its records say, or
        as one says that a newer snapshot of the leader does not have any more."""
        return frozenset(self._application.removed or ())

    def forget_removed(self) -> None:
        """Whoever follows has been told of them."""
        self._application.removed = None

    def forgive(self) -> None:
        """A repair took records out of the log: see `Application.forgiving`."""
        self._application.forgiving = True

    def restore(self, image: MetadataImage) -> None:
        """Begin with an image that a snapshot holds; what follows it in the log is applied to it."""
        self._application.image = image
        self._application.held = None

    def replace(self, image: MetadataImage) -> None:
        """Go on from a snapshot of what is committed by now; the changes are those between the two images."""
        before = self.image
        image.version = before.version + 1
        self.restore(image)
        changes = difference(before, image)
        if self._application.removed is not None:
            self._application.removed.update(topic_id for _, topic_id in changes.removed)
        self._created.update(dict.fromkeys(changes.created))
        self._removed += changes.removed
        self._partitions.update(dict.fromkeys(changes.partitions))
        self._configs.update(dict.fromkeys((TOPIC_RESOURCE, name) for name in changes.topic_configs))
        self._configs.update(dict.fromkeys((BROKER_RESOURCE, name) for name in changes.broker_configs))
        self._configs.update(dict.fromkeys((GROUP_RESOURCE, name) for name in changes.group_configs))
        self._brokers.update(dict.fromkeys(changes.brokers))

    def apply(self, record: LogRecord, offset: int, timestamp: int, producer: ProducerEpoch | None = None) -> None:
        """One record of the log."""
        self._application.take(record, offset)

    def apply_control(self, record: LogRecord, offset: int, producer: ProducerEpoch | None = None) -> None:
        """One control record of the log."""
        self._application.take_control(record, offset)

    def take_changes(self) -> Changes:
        """What has changed since this was asked last."""
        changes = Changes(
            created=list(self._created),
            removed=self._removed,
            partitions=list(self._partitions),
            topic_configs=[name for kind, name in self._configs if kind == TOPIC_RESOURCE],
            broker_configs=[name for kind, name in self._configs if kind == BROKER_RESOURCE],
            brokers=list(self._brokers),
            group_configs=[name for kind, name in self._configs if kind == GROUP_RESOURCE],
            levels=self._take_levels(),
        )
        self._removed = []
        for noted in (self._created, self._partitions, self._configs, self._brokers):
            noted.clear()
        return changes

    def _take_levels(self) -> list[tuple[str, int, int]]:
        before, after = self._levels, self.image.features
        if before == after:
            return []
        self._levels = dict(after)
        names = sorted({*before, *after}) if before else ()
        changed = [(name, before.get(name, 0), after.get(name, 0)) for name in names]
        return [each for each in changed if each[1] != each[2]]

    def _note(self, kind: str, message: Any) -> None:
        image = self.image
        if kind == "RemoveTopicRecord":
            topic = image.topics_by_id.get(message.topic_id)
            if topic is not None:
                self._removed.append((topic.name, message.topic_id))
        elif kind == "TopicRecord":
            self._created[message.topic_id] = None
        elif kind in _OF_PARTITIONS:
            self._partitions[message.topic_id] = None
        elif kind == "ConfigRecord":
            self._configs[(message.resource_type, message.resource_name)] = None
        elif kind in _OF_BROKERS:
            self._brokers[message.broker_id] = None
            if kind == "RegisterBrokerRecord":
                self._partitions.update(dict.fromkeys(image.topics_by_id))


def difference(before: MetadataImage, after: MetadataImage) -> Changes:
    """What led from one image to the other, where the records between them are not to be had (a snapshot)."""
    removed = [(topic.name, topic_id) for topic_id, topic in before.topics_by_id.items()]
    created = [topic_id for topic_id in after.topics_by_id if topic_id not in before.topics_by_id]
    changed = []
    for topic_id, topic in after.topics_by_id.items():
        known = before.topics_by_id.get(topic_id)
        if known is None or known.partitions != topic.partitions:
            changed.append(topic_id)
    resources = [
        resource
        for resource in {**before.configs, **after.configs}
        if before.configs.get(resource) != after.configs.get(resource)
    ]
    brokers = {**before.brokers, **after.brokers}
    return Changes(
        created=created,
        removed=[each for each in removed if each[1] not in after.topics_by_id],
        partitions=changed,
        topic_configs=[name for kind, name in resources if kind == TOPIC_RESOURCE and name in after.topics],
        broker_configs=[name for kind, name in resources if kind == BROKER_RESOURCE],
        group_configs=[name for kind, name in resources if kind == GROUP_RESOURCE],
        brokers=[node_id for node_id in brokers if before.brokers.get(node_id) != after.brokers.get(node_id)],
    )
