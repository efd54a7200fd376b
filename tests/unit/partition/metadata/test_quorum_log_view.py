"""The metadata log as raft compares it with another one: what it no longer has is not known to be the same."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from duramen.machines.raft.raft_log import SAME, Comparison, OffsetEpoch, compare, cut_for
from duramen.machines.raft.voters import Voters
from duramen.partition.metadata.quorum import QuorumLogView
from duramen.storage import SnapshotId
from duramen.storage.segment.leader_epochs import EpochCache


def view(start: int, end: int, epochs: list[tuple[int, int]], *kept: SnapshotId) -> QuorumLogView:
    """A log of these bounds, with (epoch, start offset) of each epoch in it."""
    known = EpochCache()
    for epoch, offset in epochs:
        known.assign(epoch, offset)
    log = SimpleNamespace(start_offset=start, end_offset=end, durable_end=end, epochs=known)
    return QuorumLogView(cast(Any, SimpleNamespace(log=log)), cast(Any, SimpleNamespace(kept=list(kept))), Voters())


def test_a_deposed_leaders_record_is_not_the_last_one_of_a_snapshot() -> None:
    """Cluster seed 77: the leader of epoch 2 has cut all below 29, the other one had written 28 in epoch 1."""
    leader = view(29, 29, [(2, 29)], SnapshotId(29, 2))
    assert compare(leader, 29, 1) == Comparison(snapshot=OffsetEpoch(29, 2))
    longer = view(29, 35, [(2, 29)], SnapshotId(29, 2))
    assert compare(longer, 30, 1) == Comparison(snapshot=OffsetEpoch(29, 2))
    assert compare(longer, 29, 2) == SAME


def test_the_snapshots_epoch_ends_where_the_log_begins() -> None:
    leader = view(29, 35, [(2, 29)], SnapshotId(29, 1))
    assert compare(leader, 29, 1) == SAME
    assert compare(leader, 30, 1) == Comparison(diverging=OffsetEpoch(29, 1))
    assert cut_for(view(20, 30, [(1, 20)], SnapshotId(20, 1)), OffsetEpoch(29, 1)) == 29


def test_a_log_from_its_very_beginning_says_where_each_epoch_ends() -> None:
    leader = view(0, 35, [(1, 0), (3, 20)], SnapshotId(0, 0))
    assert leader.end_of_epoch(1) == leader.end_of_epoch(2) == OffsetEpoch(20, 1)
    assert compare(leader, 25, 1) == Comparison(diverging=OffsetEpoch(20, 1))
    assert compare(leader, 5, 0) == Comparison(diverging=OffsetEpoch(0, 0))
