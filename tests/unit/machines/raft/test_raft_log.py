"""How two histories are compared, and where a follower cuts its own."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from tests.worlds.raft_world import Entry, ToyLog

from duramen.machines.raft import OffsetEpoch
from duramen.machines.raft.raft_log import SAME, Comparison, compare, cut_for


def log(*epochs: int, start: int = 0) -> ToyLog:
    toy = ToyLog()
    toy.append(*(Entry(epoch, at) for at, epoch in enumerate(epochs)))
    if start:
        toy.take_snapshot(start, start)
    return toy


def test_a_piece_of_the_leaders_log_is_the_same() -> None:
    leader = log(1, 1, 3, 3)
    assert compare(leader, 0, -1) is SAME
    assert compare(leader, 1, 1) is SAME
    assert compare(leader, 2, 1) is SAME
    assert compare(leader, 4, 3) is SAME


def test_where_they_part_the_leader_names_its_end_of_the_epoch() -> None:
    leader = log(1, 1, 3, 3)
    assert compare(leader, 3, 1) == Comparison(diverging=OffsetEpoch(2, 1))
    assert compare(leader, 3, 2) == Comparison(diverging=OffsetEpoch(2, 1))
    assert compare(leader, 9, 3) == Comparison(diverging=OffsetEpoch(4, 3))
    assert compare(leader, 4, 7) == Comparison(diverging=OffsetEpoch(4, 3))
    assert compare(leader, 2, 0) == Comparison(diverging=OffsetEpoch(0, -1))


def test_below_the_leaders_start_a_snapshot_is_needed() -> None:
    leader = log(1, 1, 3, 3, start=3)
    snapshot = OffsetEpoch(3, 3)
    assert compare(leader, 0, -1) == Comparison(snapshot=snapshot)
    assert compare(leader, 2, 1) == Comparison(snapshot=snapshot)
    assert compare(leader, 3, 3) is SAME
    assert compare(leader, 3, 2) == Comparison(snapshot=snapshot)
    assert compare(leader, 4, 2) == Comparison(snapshot=snapshot)
    assert compare(leader, 5, 3) == Comparison(diverging=OffsetEpoch(4, 3))


def test_a_snapshot_that_is_not_there_is_no_answer() -> None:
    leader = log(1, 1, 3, 3, start=3)
    leader.snapshot_id = None
    assert compare(leader, 1, 1).is_impossible
    leader.snapshot_id = OffsetEpoch(2, 1)
    assert compare(leader, 1, 1).is_impossible


def test_a_follower_cuts_where_both_have_the_epoch() -> None:
    follower = log(1, 1, 2, 2)
    assert cut_for(follower, OffsetEpoch(3, 2)) == 3
    assert cut_for(follower, OffsetEpoch(9, 1)) == 2
    assert cut_for(follower, OffsetEpoch(1, 1)) == 1
    assert cut_for(follower, OffsetEpoch(0, -1)) == 0


@st.composite
def two_logs(draw: st.DrawFn) -> tuple[ToyLog, ToyLog]:
    """Two logs as elections leave them: equal up to a point; behind it no epoch is in both."""
    common = sorted(draw(st.lists(st.integers(1, 3), max_size=5)))
    base = common[-1] if common else 0
    mine = sorted(draw(st.lists(st.sampled_from((base + 1, base + 3, base + 5)), max_size=4)))
    yours = sorted(draw(st.lists(st.sampled_from((base, base + 2, base + 4)), max_size=4)))
    left, right = ToyLog(), ToyLog()
    for toy, own, first in ((left, mine, 100), (right, yours, 200)):
        toy.append(*(Entry(epoch, at) for at, epoch in enumerate(common)))
        toy.append(*(Entry(epoch, first + at) for at, epoch in enumerate(own)))
    return left, right


@given(two_logs())
def test_cutting_ends_where_the_histories_part_and_never_above(logs: tuple[ToyLog, ToyLog]) -> None:
    leader, follower = logs
    whole = follower.all()
    for _ in range(20):
        found = compare(leader, follower.end_offset, follower.latest_epoch)
        if found is SAME:
            break
        assert found.diverging is not None
        cut = cut_for(follower, found.diverging)
        assert cut < follower.end_offset
        follower.cut(cut)
    rest = follower.all()
    assert rest == leader.all()[: len(rest)]
    common = [mine for mine, theirs in zip(whole, leader.all(), strict=False) if mine == theirs]
    assert rest == common
