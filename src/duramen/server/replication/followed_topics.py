"""The topics of which this node follows partitions: what has them fetched, once there is one.

A node alone, as most are, loads nothing else of this package.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from duramen.config import BrokerConfig
from duramen.machines.metadata.image import NO_LEADER, TopicImage
from duramen.model import TopicId
from duramen.partition.metadata.publisher import MetadataPublisher
from duramen.partition.store.store import Store
from duramen.ports import World
from duramen.server.api.services import EventReport

if TYPE_CHECKING:
    from duramen.server.replication.replica_fetchers import ReplicaFetchers


class FollowedTopics:
    """Of one broker. Loop thread only; nothing is fetched before this process is registered."""

    def __init__(
        self, world: World, store: Store, publisher: MetadataPublisher, config: BrokerConfig, report: EventReport
    ) -> None:
        self._world = world
        self._store = store
        self._publisher = publisher
        self._config = config
        self._node_id = config.integer("node.id")
        self._report = report
        self._broker_epoch = -1
        self._closed = False
        self.fetchers: ReplicaFetchers | None = None
        """None while nothing was followed yet."""
        publisher.on_leaders.append(self._topic_changed)
        publisher.on_deleted.append(self._topic_deleted)
        publisher.on_configured.append(self._topic_configured)
        publisher.on_brokers.append(self._brokers_changed)

    def registered(self, broker_epoch: int) -> None:
        """This process is registered, and the image is at least as new."""
        self._broker_epoch = broker_epoch
        if self.fetchers is not None:
            self.fetchers.registered(broker_epoch)
        image = self._publisher.image
        if len(image.brokers) > 1:
            for name in image.names():
                self._topic_changed(name)

    def _topic_changed(self, name: str) -> None:
        fetchers = self.fetchers
        if fetchers is None:
            if self._broker_epoch < 0 or self._closed or len(self._publisher.image.brokers) < 2:
                return
            topic = self._publisher.image.topic(name)
            if topic is None or not self._is_followed(topic):
                return
            module = import_module("duramen.server.replication.replica_fetchers")
            fetchers = self.fetchers = module.ReplicaFetchers(
                self._world, self._store, self._publisher, self._config, self._report, self._broker_epoch
            )
        fetchers.topic_changed(name)

    def _is_followed(self, topic: TopicImage) -> bool:
        node_id = self._node_id
        return any(
            node_id in each.replicas and each.leader not in (node_id, NO_LEADER)
            for each in topic.partitions
            if len(each.replicas) > 1
        )

    def _topic_deleted(self, name: str, topic_id: TopicId) -> None:
        if self.fetchers is not None:
            self.fetchers.topic_deleted(topic_id)

    def _topic_configured(self, name: str) -> None:
        if self.fetchers is not None:
            self.fetchers.topic_configured(name)

    def _brokers_changed(self) -> None:
        if self.fetchers is not None:
            self.fetchers.brokers_changed()

    def close(self) -> None:
        """Nothing is fetched any more."""
        self._closed = True
        if self.fetchers is not None:
            self.fetchers.close()
