"""Guards of transactions whose coordinators and leaders are on different nodes, and all guards of clusters."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from duramen.machines.transaction import TransactionMachine
from duramen.server.coordinators.transactions import TransactionCoordinators
from duramen.server.replication.replica_fetcher import ReplicaFetcher
from duramen.sim.mutations.cluster_mutations import CLUSTER_GUARDS, ClusterGuard
from duramen.sim.mutations.replica_mutations import REPLICA_GUARDS
from duramen.sim.mutations.transaction_mutations import DecisionKept, EffectsCommitted
from duramen.sim.world.plan import ClusterPlan
from duramen.storage import ProducerStates
from duramen.wire.batch import BatchHeader, Marker


class CoordinatorGuard(ClusterGuard):
    """One that a coordinator of several needs."""

    cluster = ClusterPlan(
        nodes=3,
        brokers=True,
        faults=20,
        changes=2,
        transactions=True,
        kinds=("power cut at an ending", "kill at an ending"),
    )


class DecisionHandedOn(CoordinatorGuard):
    """A coordinator that takes over takes what was decided for carried out."""

    owner = TransactionMachine
    method = "on_loaded"
    caught_by = DecisionKept.caught_by
    also = DecisionKept.also

    def replacement(self, original: Any) -> Any:
        """As on one node."""
        return DecisionKept().replacement(original)


class EffectsReplicated(CoordinatorGuard):
    """Markers are on their way before the decision is committed: with its coordinator it is gone, and they are not."""

    owner = TransactionCoordinators
    method = "_keeps_order"
    caught_by = "Atomic"
    also = EffectsCommitted.also
    cluster = replace(CoordinatorGuard.cluster, copies=1, kinds=("power cut at an ending",))

    def replacement(self, original: Any) -> Any:
        """As if all was led here, and in one journal."""
        return EffectsCommitted().replacement(original)


class CoordinatorEpochs(CoordinatorGuard):
    """A partition takes the marker of a deposed coordinator: it ends the transaction that has begun since."""

    owner = ProducerStates
    method = "check_marker"
    caught_by = "AbortedUnseen"
    also = ("Atomic", "NoLateMarker", "FencedAnsweredOnce", "StableAdvances", "Progress")
    cluster = replace(CoordinatorGuard.cluster, faults=60, kinds=("late marker",))

    def replacement(self, original: Any) -> Any:
        """Whatever its coordinator's epoch is."""

        def check_marker(producers: ProducerStates, header: BatchHeader, marker: Marker, version: int) -> Any:
            producer = producers._producers.get(header.producer_id)
            known = -1 if producer is None else producer.coordinator_epoch
            later = marker._replace(coordinator_epoch=max(known, marker.coordinator_epoch))
            return original(producers, header, later, version)

        return check_marker


class SyncedMarkers(CoordinatorGuard):
    """A follower has a page-cache topic's marker once it is written: it leads, power fails, none is written again."""

    owner = ReplicaFetcher
    method = "_are_markers_safe"
    caught_by = "StableAdvances"
    also = ("Atomic", "NoLateMarker")
    cluster = replace(
        CoordinatorGuard.cluster, faults=8, changes=1, kinds=("power cut", "power cut of all", "power cut in a call")
    )

    def replacement(self, original: Any) -> Any:
        """They always are."""
        return lambda fetcher, target: True


COORDINATOR_GUARDS: dict[str, ClusterGuard] = {
    "decision-handed-on": DecisionHandedOn(),
    "effects-replicated": EffectsReplicated(),
    "coordinator-epochs": CoordinatorEpochs(),
    "synced-markers": SyncedMarkers(),
}
"""By the name that BREAK= takes."""

ALL_CLUSTER_GUARDS: dict[str, ClusterGuard] = CLUSTER_GUARDS | REPLICA_GUARDS | COORDINATOR_GUARDS
"""Those that a cluster needs: of the quorum, of the copies, of the coordinators."""
