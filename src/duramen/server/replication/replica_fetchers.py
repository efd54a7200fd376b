"""All fetchers of one node: which partitions it follows, from whom and for which purpose, by the committed metadata.

Loaded when the node follows its first partition. What changes costs, not what is followed.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple, Protocol

from duramen.client.loop.peer_channels import PeerChannels, Purpose
from duramen.config import BrokerConfig
from duramen.machines.metadata.image import NO_LEADER, BrokerImage, MetadataImage, PartitionImage, TopicImage
from duramen.model import TopicId
from duramen.partition.store.store import Store
from duramen.ports import World
from duramen.server.api.services import EventReport
from duramen.server.replication.replica_fetcher import FetcherSettings, ReplicaFetcher
from duramen.server.replication.replica_target import ReplicaTarget

_PURPOSES: Final = {
    (True, True): Purpose.STABLE,
    (False, True): Purpose.PAGE_CACHE,
    (True, False): Purpose.CATCH_UP,
    (False, False): Purpose.PAGE_CACHE_CATCH_UP,
}
"""By whether the topic is stable, and whether the replica is in sync."""


class FollowedImage(Protocol):
    """Who has the committed metadata."""

    @property
    def image(self) -> MetadataImage: ...


class _Leader(NamedTuple):
    """A broker, as its followers need to know it. address: None while it is fenced, or listens nowhere for brokers."""

    epoch: int
    address: tuple[str, int] | None


class ReplicaFetchers:
    """See the module. Loop thread only; listener: the name of the one on which brokers reach each other."""

    def __init__(
        self,
        world: World,
        store: Store,
        metadata: FollowedImage,
        config: BrokerConfig,
        report: EventReport,
        broker_epoch: int,
    ) -> None:
        self._world = world
        self._store = store
        self._metadata = metadata
        self._node_id = config.integer("node.id")
        self._listener = config.inter_broker_listener
        self._settings = fetcher_settings(config)
        self._report = report
        self._broker_epoch = broker_epoch
        self._channels = PeerChannels(
            world.network, world.clock, world.entropy, f"duramen-{self._node_id}", lambda purpose, died: None
        )
        self._fetchers: dict[tuple[int, Purpose], ReplicaFetcher] = {}
        self._targets: dict[TopicId, dict[int, ReplicaTarget]] = {}
        self._homes: dict[ReplicaTarget, ReplicaFetcher] = {}
        self._brokers: dict[int, BrokerImage] = {}
        self._closed = False
        self.brokers_changed()

    @property
    def fetchers(self) -> Iterable[ReplicaFetcher]:
        return self._fetchers.values()

    @property
    def targets(self) -> Iterable[ReplicaTarget]:
        """All that is followed."""
        return self._homes

    # ---- what the metadata says --------------------------------------------------------------------------------

    def registered(self, broker_epoch: int) -> None:
        """This process is registered anew: Fetches name its epoch."""
        self._broker_epoch = broker_epoch
        for fetcher in self._fetchers.values():
            fetcher.reach(self._leader(fetcher.leader_id).address, broker_epoch)

    def topic_changed(self, name: str) -> None:
        """Partitions of the topic may have another leader, epoch or in-sync replicas, or be open by now."""
        topic = self._metadata.image.topic(name)
        if topic is None or self._closed:
            return
        known = self._targets.get(topic.id, {})
        for index, image in enumerate(topic.partitions):
            if index in known or (self._node_id in image.replicas and image.leader != self._node_id):
                self._look_at(topic, index, image)

    def topic_deleted(self, topic_id: TopicId) -> None:
        """Nothing of it is followed any more."""
        for target in list(self._targets.get(topic_id, {}).values()):
            self._drop(target)

    def topic_configured(self, name: str) -> None:
        """Its durability may be another one."""
        topic = self._metadata.image.topic(name)
        if topic is None:
            return
        for target in list(self._targets.get(topic.id, {}).values()):
            self._homes[target].ask(target)

    def brokers_changed(self) -> None:
        """Some were registered, fenced or unfenced: what waits for them goes on."""
        brokers = self._metadata.image.brokers
        before, self._brokers = self._brokers, dict(brokers)
        changed = {each for each in (*before, *brokers) if before.get(each) is not brokers.get(each)}
        for fetcher in list(self._fetchers.values()):
            if fetcher.leader_id not in changed:
                continue
            was, now = before.get(fetcher.leader_id), brokers.get(fetcher.leader_id)
            fetcher.reach(self._leader(fetcher.leader_id).address, self._broker_epoch)
            if was is not None and now is not None and was.epoch != now.epoch:
                fetcher.begin()

    def _leader(self, node_id: int) -> _Leader:
        broker = self._metadata.image.brokers.get(node_id)
        if broker is None:
            return _Leader(-1, None)
        endpoint = broker.endpoint(self._listener) or next(iter(broker.endpoints), None)
        address = None if endpoint is None or broker.fenced else (endpoint.host, endpoint.port)
        return _Leader(broker.epoch, address)

    # ---- what follows from it ----------------------------------------------------------------------------------

    def _look_at(self, topic: TopicImage, index: int, image: PartitionImage) -> None:
        target = self._targets.get(topic.id, {}).get(index)
        partition = self._store.partition_by_id(topic.id, index)
        is_followed = self._node_id in image.replicas and image.leader not in (self._node_id, NO_LEADER)
        if partition is None or not is_followed or (target is not None and target.partition is not partition):
            if target is not None:
                self._drop(target)
            if partition is None or not is_followed:
                return
            target = None
        if target is None:
            directory = self._store.home(partition.tp)
            target = ReplicaTarget(partition, directory, self._settings.backoff_ms / 1000)
            self._targets.setdefault(topic.id, {})[index] = target
        following = target.following
        target.may_lose = image.leader_recovery_state != 0
        is_news = target.partition_epoch != image.partition_epoch
        target.partition_epoch = image.partition_epoch
        step = None
        if (following.leader, following.epoch) != (image.leader, image.leader_epoch):
            is_news = True
            step = following.follow(image.leader, image.leader_epoch, target.log)
        home = self._put(target, in_sync=self._node_id in image.isr)
        if step is not None:
            home.give_up(target, step)
        elif is_news:
            home.ask(target)

    def _put(self, target: ReplicaTarget, *, in_sync: bool) -> ReplicaFetcher:
        """Have it fetched where it belongs."""
        target.is_stable = target.partition.is_stable
        key = target.following.leader, _PURPOSES[target.is_stable, in_sync]
        before, home = self._homes.get(target), self._fetchers.get(key)
        if home is None:
            home = self._fetchers[key] = ReplicaFetcher(
                self._world, self._store, self._channels, self._node_id, *key, self._settings, self._report, self._moved
            )
            home.reach(self._leader(key[0]).address, self._broker_epoch)
        if before is not home:
            if before is not None:
                self._take_out(target, before)
            self._homes[target] = home
            home.add(target)
        return home

    def _moved(self, target: ReplicaTarget) -> None:
        """Its topic's durability is another one."""
        topic = self._metadata.image.topic_by_id(target.key[0])
        if topic is not None and target in self._homes and target.key[1] < len(topic.partitions):
            self._put(target, in_sync=self._node_id in topic.partitions[target.key[1]].isr)

    def _drop(self, target: ReplicaTarget) -> None:
        topic_id, index = target.key
        known = self._targets[topic_id]
        del known[index]
        if not known:
            del self._targets[topic_id]
        self._take_out(target, self._homes.pop(target))

    def _take_out(self, target: ReplicaTarget, home: ReplicaFetcher) -> None:
        home.remove(target)
        if not len(home):
            del self._fetchers[home.leader_id, home.purpose]
            home.close()

    def close(self) -> None:
        """Nothing is fetched any more."""
        self._closed = True
        for fetcher in self._fetchers.values():
            fetcher.close()
        self._channels.close()


def fetcher_settings(config: BrokerConfig) -> FetcherSettings:
    """`replica.fetch.*`."""
    number = config.integer
    return FetcherSettings(
        number("replica.fetch.max.bytes"),
        number("replica.fetch.response.max.bytes"),
        number("replica.fetch.wait.max.ms"),
        number("replica.fetch.min.bytes"),
        number("replica.fetch.backoff.ms"),
    )
