"""Where a request goes: to any node, the controller, a node by its id, a partition's leader, or a coordinator."""

from __future__ import annotations

from enum import Enum
from typing import Final, NamedTuple

from duramen.model import TopicPartition


class Anywhere(Enum):
    """Requests that are not bound to what a node leads."""

    ANY = "any node"
    CONTROLLER = "the controller"


ANY: Final = Anywhere.ANY
CONTROLLER: Final = Anywhere.CONTROLLER

GROUP: Final = 0
TRANSACTION: Final = 1
SINK: Final = 100
"""Kinds of coordinators, as FindCoordinator has them."""


class CoordinatorKey(NamedTuple):
    """The coordinator of a group, a transactional id or a sink."""

    key: str
    kind: int = GROUP


Route = Anywhere | int | TopicPartition | CoordinatorKey
"""An int is a node's id, a TopicPartition stands for its leader."""
