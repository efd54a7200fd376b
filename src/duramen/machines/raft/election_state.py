"""What a replica must not forget: Kafka's file `quorum-state` (data_version 1), as a value."""

from __future__ import annotations

from typing import NamedTuple

from duramen.machines.raft.voters import NO_DIRECTORY


class ElectionState(NamedTuple):
    """The latest epoch that is known, who leads it, and whom this replica voted for in it; -1: nobody."""

    leader_id: int = -1
    leader_epoch: int = 0
    voted_id: int = -1
    voted_directory_id: bytes = NO_DIRECTORY
