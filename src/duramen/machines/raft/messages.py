"""What replicas of the log say to each other: what KIP-595, -630, -853, -996 and -1166 carry, without its layout.

Every answer says which epoch its sender is in and whom it knows as the leader (-1: nobody), and where that listens.
"""

from __future__ import annotations

from typing import NamedTuple

from duramen.errors import ErrorCode
from duramen.machines.raft.raft_log import OffsetEpoch
from duramen.machines.raft.voters import ReplicaKey, VoterEndpoint

Endpoints = tuple[VoterEndpoint, ...]


class VoteRequest(NamedTuple):
    """`candidate`, whose log ends at `last_offset` with a batch of `last_epoch`, asks `voter` for its vote in `epoch`.

    pre_vote: it asks whether it would be given; the epoch is then the one that it is in (KIP-996).
    """

    epoch: int
    candidate: ReplicaKey
    voter: ReplicaKey
    last_epoch: int
    last_offset: int
    pre_vote: bool


class VoteResponse(NamedTuple):
    error: ErrorCode
    epoch: int
    leader_id: int
    granted: bool
    endpoints: Endpoints = ()


class BeginEpochRequest(NamedTuple):
    """BeginQuorumEpoch: `leader_id` was elected."""

    epoch: int
    leader_id: int
    voter: ReplicaKey
    endpoints: Endpoints = ()


class BeginEpochResponse(NamedTuple):
    error: ErrorCode
    epoch: int
    leader_id: int
    endpoints: Endpoints = ()


class EndEpochRequest(NamedTuple):
    """EndQuorumEpoch: `leader_id` leads no more; `successors` may stand, the first at once."""

    epoch: int
    leader_id: int
    successors: tuple[ReplicaKey, ...]
    endpoints: Endpoints = ()


class EndEpochResponse(NamedTuple):
    error: ErrorCode
    epoch: int
    leader_id: int
    endpoints: Endpoints = ()


class FetchRequest(NamedTuple):
    """`replica` has all below `offset` on stable storage, the last batch of it of `last_epoch`, and asks for more."""

    replica: ReplicaKey
    epoch: int
    offset: int
    last_epoch: int
    high_watermark: int
    """The commit point that it knows; the leader answers at once when it has a later one (KIP-1166)."""
    max_wait: float
    max_bytes: int


class FetchResponse(NamedTuple):
    error: ErrorCode
    leader_id: int
    epoch: int
    high_watermark: int = -1
    records: object = None
    """Whole batches from the offset that was asked for; the shell's, opaque here. None or empty: nothing."""
    diverging: OffsetEpoch | None = None
    snapshot: OffsetEpoch | None = None
    log_start: int = -1
    endpoints: Endpoints = ()


class SnapshotRequest(NamedTuple):
    """FetchSnapshot: up to `max_bytes` of a snapshot from `position`."""

    replica: ReplicaKey
    epoch: int
    snapshot: OffsetEpoch
    position: int
    max_bytes: int


class SnapshotResponse(NamedTuple):
    error: ErrorCode
    leader_id: int
    epoch: int
    snapshot: OffsetEpoch
    size: int = 0
    position: int = 0
    data: object = None
    endpoints: Endpoints = ()


Request = VoteRequest | BeginEpochRequest | EndEpochRequest | FetchRequest | SnapshotRequest
Response = VoteResponse | BeginEpochResponse | EndEpochResponse | FetchResponse | SnapshotResponse
