"""Guards of replication that a simulated cluster can do without for a while: a promise breaks then."""

from __future__ import annotations

from typing import Any

from duramen.machines.metadata import leaders
from duramen.machines.metadata.image import BrokerImage, MetadataImage, PartitionImage, TopicImage
from duramen.machines.replication.leader import Replication
from duramen.partition.metadata.publisher import MetadataPublisher
from duramen.partition.replica.partition import Partition
from duramen.partition.store.store import Store
from duramen.server.controller.broker_lease import BrokerLease
from duramen.server.controller.broker_watch import BrokerWatch
from duramen.server.handlers import replica_fetch
from duramen.server.replication.replica_fetcher import ReplicaFetcher
from duramen.server.replication.replica_target import ReplicaTarget
from duramen.sim.mutations.cluster_mutations import ENDS, LINKS, ClusterGuard
from duramen.sim.world.plan import ClusterPlan


class ReplicaGuard(ClusterGuard):
    """One that several copies need."""

    cluster = ClusterPlan(nodes=3, brokers=True, faults=6, changes=2, kinds=(*ENDS, *LINKS))


class SyncedEnds(ReplicaGuard):
    """A follower acknowledges what is in its page cache only: a power cut takes it from all who are in sync."""

    owner = ReplicaFetcher
    method = "_settle"
    caught_by = "InSyncHasEverything"
    also = ("ElectedHasEverything", "AcknowledgedNeverLost", "NothingReadVanishes")

    def replacement(self, original: Any) -> Any:
        """Wait for nothing."""

        def settle(fetcher: ReplicaFetcher) -> None:
            for target in fetcher._unsettled:
                fetcher._due[target] = None
                fetcher._follow_leader(target)
            fetcher._unsettled = {}
            fetcher._send()

        return settle

    def parts(self) -> list[tuple[Any, str, Any]]:
        """Nor where it is named."""
        return [*super().parts(), (Store, "is_settled", lambda store, partition: True)]


class MaximalInSync(ReplicaGuard):
    """Only who is in sync by what is committed bounds the watermark: who was proposed may be so, and lack something."""

    owner = Replication
    method = "_count"
    caught_by = "InSyncHasEverything"
    also = ("ElectedHasEverything",)

    def replacement(self, original: Any) -> Any:
        """Neither proposals nor those that are about to join."""

        def count(replication: Replication) -> None:
            followers = replication._followers.items()
            replication._counted = tuple(follower for node, follower in followers if node in replication.isr)

        return count


class FewestInSync(ReplicaGuard):
    """A watermark moves with fewer in sync than min.insync.replicas asks for."""

    owner = Replication
    method = "advance"
    caught_by = "WatermarkWaits"

    def replacement(self, original: Any) -> Any:
        """As if it asked for one."""

        def advance(replication: Replication) -> bool:
            fewest, replication.fewest = replication.fewest, 1
            try:
                return bool(original(replication))
            finally:
                replication.fewest = fewest

        return advance


class ReplicaHistories(ReplicaGuard):
    """A leader takes every follower's log for a piece of its own: what a deposed one wrote stays."""

    owner = replica_fetch
    method = "divergence"
    caught_by = "ReplicasEqual"
    also = ("Progress", "InSyncHasEverything", "NothingReadVanishes", "ElectedHasEverything")

    def replacement(self, original: Any) -> Any:
        """It is."""
        return lambda partition, epoch, end: None


class JoinsWithEverything(ReplicaGuard):
    """A follower joins the ISR wherever it is."""

    owner = Replication
    method = "in_sync_change"
    caught_by = "InSyncHasEverything"
    also = ("ElectedHasEverything",)

    def replacement(self, original: Any) -> Any:
        """As if nothing were committed, and the epoch had begun with the log."""

        def change(replication: Replication, *arguments: Any) -> Any:
            high, start = replication.high_watermark, replication.epoch_start
            replication.high_watermark = replication.epoch_start = -1
            try:
                return original(replication, *arguments)
            finally:
                replication.high_watermark, replication.epoch_start = high, start

        return change


class ElectedInSync(ReplicaGuard):
    """Whoever is active leads, in sync or not."""

    owner = leaders
    method = "_able"
    caught_by = "ElectedHasEverything"
    also = ("ReplicasEqual", "InSyncHasEverything")
    cluster = ClusterPlan(nodes=3, brokers=True, faults=10, changes=2, kinds=("one-way cut", "cut", "kill", "pause"))

    def replacement(self, original: Any) -> Any:
        """Take the first one."""

        def able(partition: PartitionImage, active: leaders.Active) -> list[int]:
            return [node_id for node_id in partition.replicas if node_id in active]

        return able


class EpochOfARestart(ReplicaGuard):
    """The registration of a leader that was started again leaves the epoch what it was: both lead in it."""

    owner = MetadataImage
    method = "start_broker"
    caught_by = "OneLeaderAnEpoch"
    also = ("ReplicasEqual", "Progress")

    def replacement(self, original: Any) -> Any:
        """Register the broker and leave its partitions alone."""

        def start_broker(image: MetadataImage, broker: BrokerImage) -> None:
            image.brokers[broker.id] = broker

        return start_broker


class OwnRegistration(ReplicaGuard):
    """A process leads what an earlier one was elected to, from before its own registration."""

    owner = MetadataPublisher
    method = "lead"
    caught_by = "OneLeaderAnEpoch"
    also = ("ReplicasEqual",)

    def replacement(self, original: Any) -> Any:
        """As if every registration were its own."""

        def lead(publisher: MetadataPublisher, topic: TopicImage) -> None:
            own, incarnation = publisher.image.brokers.get(publisher._node_id), publisher.incarnation
            if own is not None:
                publisher.incarnation = own.incarnation_id
            try:
                original(publisher, topic)
            finally:
                publisher.incarnation = incarnation

        return lead


class WatermarkOfAFollower(ReplicaGuard):
    """A follower's watermark is whatever its leader says: a new one knows less."""

    owner = ReplicaTarget
    method = "follow_leader"
    caught_by = "WatermarkNeverBack"
    cluster = ClusterPlan(nodes=3, brokers=True, faults=10, changes=2, kinds=("kill", "pause", "isolated", "slow disk"))

    def replacement(self, original: Any) -> Any:
        """Also when it falls."""

        def follow_leader(target: ReplicaTarget) -> bool:
            replication = target.partition.replication
            if 0 <= target.leader_high < replication.high_watermark:
                replication.high_watermark = target.leader_high
            return bool(original(target))

        return follow_leader


class AcknowledgedByAll(ReplicaGuard):
    """acks=all is answered when the leader has it: the next one need not."""

    owner = Partition
    method = "park"
    caught_by = "AcknowledgedNeverLost"
    also = ("OffsetStability", "Order", "Progress")

    def replacement(self, original: Any) -> Any:
        """As acks=1."""

        def park(partition: Partition, end: int, acks: int, done: Any, answer: Any) -> None:
            original(partition, end, min(abs(acks), 1), done, answer)

        return park


class UncleanStops(ReplicaGuard):
    """Who lost its page cache stays in sync: it is elected without what others in the ISR have."""

    owner = leaders
    method = "leave_behind"
    caught_by = "InSyncHasEverything"
    also = ("ElectedHasEverything",)
    cluster = ClusterPlan(nodes=3, brokers=True, faults=6, changes=2, kinds=("power cut", "power cut in a call"))

    def replacement(self, original: Any) -> Any:
        """Nobody leaves."""
        return lambda *arguments: []


class RefusedProves(ReplicaGuard):
    """A connection that was ended from there is enough: what a network resets makes a living broker a dead one."""

    owner = BrokerWatch
    method = "_look"
    caught_by = "OnlyDeadFencedAtOnce"
    cluster = ClusterPlan(nodes=3, brokers=True, faults=10, kinds=("isolated", "cut", "one-way cut"))

    def replacement(self, original: Any) -> Any:
        """Look at no address."""
        return lambda watch, node_id, broker_epoch, address: watch._died(node_id, broker_epoch)


class LeaseEnds(ReplicaGuard):
    """A broker that controllers have answered once acknowledges by itself for ever."""

    owner = BrokerLease
    method = "holds"
    caught_by = "LeaseEndsFirst"
    cluster = ClusterPlan(nodes=3, brokers=True, faults=10, kinds=("isolated", "pause"))

    def replacement(self, original: Any) -> Any:
        """Whenever that was."""
        return lambda lease: lease._until > float("-inf")


REPLICA_GUARDS: dict[str, ClusterGuard] = {
    "synced-ends": SyncedEnds(),
    "maximal-isr": MaximalInSync(),
    "fewest-in-sync": FewestInSync(),
    "replica-epochs": ReplicaHistories(),
    "joins-whole": JoinsWithEverything(),
    "elected-in-sync": ElectedInSync(),
    "restart-epoch": EpochOfARestart(),
    "own-registration": OwnRegistration(),
    "follower-high": WatermarkOfAFollower(),
    "acks-all": AcknowledgedByAll(),
    "unclean-stop": UncleanStops(),
    "refused-proves": RefusedProves(),
    "lease-ends": LeaseEnds(),
}
"""Every guard of replication by the name that BREAK= takes."""
