"""Assignors of consumer groups: who of a group reads which partitions. Pure functions of members and partitions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from duramen.machines.group.assignors.range import assign_ranges
from duramen.machines.group.assignors.specification import Assignment, GroupSpec, MemberSpec, Owned, PartitionCounts
from duramen.machines.group.assignors.uniform import assign_uniformly

ASSIGNORS: Final[Mapping[str, Callable[[GroupSpec, PartitionCounts], Assignment]]] = {
    "uniform": assign_uniformly,
    "range": assign_ranges,
}
"""By the name that clients ask for and `group.consumer.assignors` lists."""

__all__ = ["ASSIGNORS", "Assignment", "GroupSpec", "MemberSpec", "Owned", "PartitionCounts"]
