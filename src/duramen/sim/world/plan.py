"""What a simulation does besides its seed."""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random
from typing import NamedTuple

CHANCES = {"small journal": 0.6, "compacted": 0.4, "expiring": 0.5, "recreator": 0.7, "hardener": 0.7, "trimmer": 0.7,
           "second producer": 0.4, "second group": 0.3, "odd times": 0.4,
           "cached compaction": 0.4, "grower": 0.4, "configurer": 0.5, "static members": 0.4,
           "two directories": 0.3, "transactions": 0.35, "shared group": 0.25, "streams": 0.2}  # fmt: skip
"""Features of a world and the share of the seeds that have each."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The shape of a world.

    records: how many each producer makes, one producer a partition. partitions: of the stable topic. calm: no faults
    are drawn from the seed. cut_at: power fails in this disk call of the first start. churn: the seed draws further
    topics, producers, groups, and those who delete and change things (CHANCES). segment_bytes: of all topics; None
    draws it from the seed. replayed: share of the starts before which recovery is tried on copies of the disk. faults:
    only these kinds; empty: all. moments: those of them that wait for a state wait for one of these; empty: the
    world's own. features: these in any case. without: those of CHANCES that the seed does not draw.
    """

    records: int = 40
    readers: int = 1
    partitions: int = 2
    members: int = 2
    page_cache: bool = True
    churn: bool = True
    torn: bool = True
    calm: bool = False
    cut_at: int | None = None
    segment_bytes: int | None = None
    replayed: float = 0.2
    faults: tuple[str, ...] = ()
    moments: tuple[str, ...] = ()
    features: tuple[str, ...] = ()
    without: tuple[str, ...] = ("streams",)

    def has(self, feature: str, random: Random) -> bool:
        """Whether a world has the feature: as the plan says, or as the seed draws it."""
        drawn = random.random() < CHANCES[feature]
        return feature in self.features or (self.churn and drawn and feature not in self.without)


@dataclass(frozen=True, slots=True)
class ClusterPlan:
    """The shape of a world of several nodes. nodes: None draws it. faults: how many; None draws that. changes: of each
    who makes some. kinds: only faults of these kinds; empty: all. small_snapshots: None draws it. brokers: whether the
    nodes are brokers, too, with clients; None draws it. copies: of a partition at most. transactions: None
    draws whether there are some. shared_group: of both protocols; None draws it. streams: whether some are written to.
    """

    nodes: int | None = None
    faults: int | None = None
    changes: int = 12
    kinds: tuple[str, ...] = ()
    small_snapshots: bool | None = None
    brokers: bool | None = False
    copies: int = 3
    transactions: bool | None = None
    shared_group: bool | None = None
    streams: bool = False


class WorldKind(NamedTuple):
    """What is at the centre of a world: its plan with one node, and with several."""

    single: Plan
    cluster: ClusterPlan


QUIET = Plan(records=3, readers=0, members=0, partitions=1, page_cache=False, churn=False)
"""A world in which little happens besides what its features are about."""
KINDS = {
    "everything": WorldKind(Plan(without=()), ClusterPlan(brokers=None)),
    "transactions": WorldKind(
        replace(QUIET, features=("transactions", "checkpoints")),
        ClusterPlan(brokers=True, changes=2, transactions=True),
    ),
    "streams": WorldKind(replace(QUIET, features=("streams",)), ClusterPlan(brokers=True, changes=2, streams=True)),
    "groups": WorldKind(
        replace(QUIET, features=("shared group",)), ClusterPlan(brokers=True, changes=2, shared_group=True)
    ),
}
"""By the name that WORLD= takes."""
