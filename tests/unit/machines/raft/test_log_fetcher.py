"""How a follower gets the log, and how a replica without a leader finds one."""

from __future__ import annotations

import pytest
from tests.worlds.raft_bench import SETTINGS, RaftBench, key, role_of
from tests.worlds.raft_world import Entry

from duramen.errors import ErrorCode
from duramen.machines.raft import (
    ANYBODY,
    AppendFailed,
    BeginEpochRequest,
    CommitAdvanced,
    ElectionState,
    FetchRequest,
    FetchResponse,
    Halt,
    LoadSnapshot,
    LogMoved,
    OffsetEpoch,
    PeerDied,
    Replied,
    Role,
    Send,
    SnapshotFailed,
    SnapshotRequest,
    SnapshotResponse,
    TakeRecords,
    Truncate,
    VoteRequest,
)

FOLLOWING = ElectionState(2, 3)
"""What a follower of node 2 in epoch 3 had saved."""


def follower(*epochs: int, syncs: bool = True, id: int = 1) -> RaftBench:
    return RaftBench(epochs=epochs, state=FOLLOWING, syncs=syncs, id=id).start()


def under_way(bench: RaftBench) -> Send:
    (send,) = bench.sent(FetchRequest)
    return send


def asked(bench: RaftBench) -> FetchRequest:
    request = under_way(bench).request
    assert isinstance(request, FetchRequest)
    return request


def answer(
    bench: RaftBench, hw: int = -1, diverging: OffsetEpoch | None = None, snapshot: OffsetEpoch | None = None
) -> None:
    send = under_way(bench)
    bench.reply(send, FetchResponse(ErrorCode.NONE, send.to, send.request.epoch, hw, None, diverging, snapshot))


# ---- what is asked for


def test_a_fetch_names_epoch_end_and_last_epoch() -> None:
    bench = follower(1, 1, 2)
    send = under_way(bench)
    assert send.to == 2
    assert send.endpoint is not None
    assert send.endpoint.host == "node2"
    assert asked(bench)[:5] == (key(1), 3, 3, 2, -1)
    assert asked(bench).max_wait == SETTINGS.fetch_max_wait


def test_what_it_names_is_on_stable_storage() -> None:
    bench = follower(1, syncs=False)
    bench.answer_fetch(3, 3)
    assert bench.log.end_offset == 3
    assert not bench.sent(FetchRequest)
    bench.log.durable_end = 2
    bench.step(LogMoved())
    assert not bench.sent(FetchRequest)
    bench.sync()
    assert asked(bench).offset == 3


def test_one_fetch_is_under_way() -> None:
    bench = follower(1)
    bench.sync()
    assert not bench.sent(FetchRequest)
    bench.wait(1.0)
    assert not bench.sent(FetchRequest)
    assert bench.of(Send) == []


def test_the_next_one_follows_at_once() -> None:
    bench = follower(1)
    bench.answer_fetch(3, 3)
    assert asked(bench)[2:4] == (3, 3)
    bench.answer_fetch()
    assert asked(bench)[2:4] == (3, 3)


def test_a_lost_one_is_repeated_after_pauses_that_grow_to_the_same_leader() -> None:
    bench = follower(1)
    pauses = []
    for _ in range(4):
        bench.reply(under_way(bench), None)
        pauses.append(bench.raft.deadline - bench.now)
        bench.wait_for_deadline()
    assert pauses == pytest.approx([0.02, 0.04, 0.08, 0.16])


# ---- what is taken


def test_records_are_taken_at_the_very_end_that_was_asked_from() -> None:
    bench = follower(1, 1)
    send = under_way(bench)
    bench.log.append(Entry(3, 7))  # as if somebody else had appended
    bench.log.durable_end = 3
    bench.answer_fetch(3, send=send)
    assert not bench.of(TakeRecords)
    assert asked(bench).offset == 3


def test_an_answer_of_an_earlier_epoch_is_not_taken() -> None:
    bench = follower(1, 1)
    send = under_way(bench)
    bench.receive(BeginEpochRequest(4, 3, key(1)), 3)
    assert asked(bench).epoch == 4
    bench.answer_fetch(3, send=send)
    assert not bench.of(TakeRecords)
    assert bench.raft.leader_id == 3


def test_an_answer_that_nobody_waits_for_is_not_taken() -> None:
    bench = follower(1, 1)
    send = under_way(bench)
    bench.answer_fetch(3, send=send)
    assert bench.of(TakeRecords)
    bench.answer_fetch(3, send=send)
    assert not bench.of(TakeRecords)


def test_records_that_could_not_be_appended_are_asked_for_again() -> None:
    bench = follower(1, 1)
    bench.raft.step(AppendFailed(), bench.now)
    assert role_of(bench) is Role.FOLLOWER
    bench.reply(under_way(follower(1, 1)), FetchResponse(ErrorCode.NONE, 2, 3))
    assert asked(bench).offset == 2


def test_the_commit_point_is_the_leaders_as_far_as_the_own_log_goes() -> None:
    bench = follower(1, 1)
    bench.answer_fetch(3, hw=7)
    assert bench.only(CommitAdvanced).offset == 3
    assert asked(bench).high_watermark == 3
    bench.answer_fetch(3, 3, hw=4)
    assert bench.only(CommitAdvanced).offset == 5  # the leader said 7 before
    bench.answer_fetch(hw=-1)
    assert not bench.of(CommitAdvanced)
    assert bench.raft.high_watermark == 5


def test_it_is_caught_up_once_it_has_what_the_leader_named_first() -> None:
    """A process before may have known as much, and its log may have lost what was not on stable storage yet."""
    bench = follower(1, 1)
    bench.answer_fetch(hw=-1)
    assert not bench.raft.is_caught_up  # the leader itself does not know yet
    bench.answer_fetch(3, hw=5)
    assert bench.raft.high_watermark == 3
    assert not bench.raft.is_caught_up
    bench.answer_fetch(3, 3, hw=9)
    assert bench.raft.high_watermark == 5
    assert bench.raft.is_caught_up


def test_what_an_earlier_leader_knew_to_be_committed_a_follower_does_not_forget() -> None:
    bench = follower(1, 1)
    bench.answer_fetch(hw=2)
    bench.receive(BeginEpochRequest(4, 3, key(1)), 3)
    assert asked(bench).high_watermark == 2
    bench.answer_fetch(hw=-1)
    assert (bench.raft.high_watermark, bench.of(CommitAdvanced)) == (2, [])


# ---- other histories, snapshots


def test_it_cuts_where_the_histories_part_then_asks_again() -> None:
    bench = follower(1, 1, 2, 2)
    answer(bench, diverging=OffsetEpoch(3, 2))
    assert bench.only(Truncate).offset == 3
    assert asked(bench)[2:4] == (3, 2)
    answer(bench, diverging=OffsetEpoch(5, 1))
    assert bench.only(Truncate).offset == 2
    assert asked(bench)[2:4] == (2, 1)


def test_below_the_commit_point_nothing_is_cut() -> None:
    bench = follower(1, 1, 2, 2)
    bench.answer_fetch(hw=3)
    answer(bench, diverging=OffsetEpoch(3, 2))
    assert bench.only(Truncate).offset == 3
    answer(bench, diverging=OffsetEpoch(2, 1))
    assert not bench.of(Truncate)
    assert "commit point" in bench.only(Halt).reason


def test_below_a_snapshot_nothing_is_cut() -> None:
    bench = RaftBench(epochs=(1, 1, 2, 2), state=FOLLOWING)
    bench.log.take_snapshot(3, 3)
    bench.start()
    answer(bench, diverging=OffsetEpoch(2, 1))
    assert not bench.of(Truncate)
    assert "commit point" in bench.only(Halt).reason


def test_a_cut_that_leads_nowhere_is_not_repeated_without_end() -> None:
    bench = follower(1, 1)
    answer(bench, diverging=OffsetEpoch(9, 1))
    assert not bench.of(Truncate)
    assert not bench.sent(FetchRequest)
    assert bench.raft.deadline == pytest.approx(bench.now + SETTINGS.retry_backoff)


def test_a_snapshot_is_loaded_and_the_log_goes_on_at_its_end() -> None:
    bench = follower()
    answer(bench, snapshot=OffsetEpoch(5, 2), hw=8)
    assert bench.only(LoadSnapshot) == LoadSnapshot(2, OffsetEpoch(5, 2))
    assert not bench.sent(FetchRequest)
    bench.wait(1.5)
    piece = SnapshotRequest(key(1), 3, OffsetEpoch(5, 2), 0, 100)
    bench.reply(Send(2, piece, None), SnapshotResponse(ErrorCode.NONE, 2, 3, OffsetEpoch(5, 2)))
    bench.wait(1.5)  # pieces that come show that the leader is there
    assert role_of(bench) is Role.FOLLOWER
    bench.log.begin_anew(OffsetEpoch(5, 2), tuple(Entry(2, at) for at in range(5)))
    bench.step(LogMoved())
    assert bench.only(CommitAdvanced).offset == 5
    assert asked(bench)[2:4] == (5, 2)


def test_a_snapshot_is_loaded_for_one_leader_and_epoch() -> None:
    """Whoever comes with it later would take records away that another leader sent since."""
    bench = follower(1)
    answer(bench, snapshot=OffsetEpoch(5, 2))
    assert bench.raft.loading == OffsetEpoch(5, 2)
    bench.receive(BeginEpochRequest(4, 3, key(1)), 3)
    assert bench.raft.loading is None
    bench.answer_fetch(4, 4)
    assert bench.log.end_offset == 3
    bench.step(SnapshotFailed())
    assert not bench.sent(FetchRequest)


def test_what_could_not_be_cut_is_not_asked_about_without_end() -> None:
    bench = RaftBench(epochs=(1, 1, 2), state=FOLLOWING).start()
    effects = bench.raft.step(
        Replied(2, under_way(bench).request, FetchResponse(ErrorCode.NONE, 2, 3, diverging=OffsetEpoch(2, 1))),
        bench.now,
    )
    assert effects == [Truncate(2)]
    bench.step(LogMoved())  # the disk refused
    assert not bench.sent(FetchRequest)
    assert bench.raft.deadline == pytest.approx(bench.now + SETTINGS.retry_backoff)


def test_a_snapshot_that_cannot_be_had_is_asked_for_again_after_a_pause() -> None:
    bench = follower()
    answer(bench, snapshot=OffsetEpoch(5, 2))
    bench.step(SnapshotFailed())
    assert not bench.sent(FetchRequest)
    bench.wait_for_deadline()
    assert asked(bench).offset == 0


def test_a_snapshot_of_less_than_is_committed_here_stops_the_node() -> None:
    bench = follower(1, 1, 2)
    bench.answer_fetch(hw=3)
    answer(bench, snapshot=OffsetEpoch(2, 1))
    assert not bench.of(LoadSnapshot)
    assert bench.of(Halt)


# ---- finding the leader


def test_who_knows_no_leader_asks_the_other_voters_by_turns() -> None:
    bench = RaftBench().start()
    to = []
    for _ in range(3):
        while not bench.sent(FetchRequest):
            bench.wait_for_deadline()
        to.append(under_way(bench).to)
        assert asked(bench).max_wait == 0.0
        bench.reply(under_way(bench), FetchResponse(ErrorCode.NOT_LEADER_OR_FOLLOWER, -1, 0))
    assert to in ([2, 3, 2], [3, 2, 3])


def test_who_knows_no_voter_asks_a_bootstrap_server() -> None:
    bench = RaftBench(voters=0, id=7).start()
    bench.wait_for_deadline()
    send = under_way(bench)
    assert (send.to, send.endpoint) == (ANYBODY, None)
    endpoints = RaftBench().raft.voters.endpoints(3)
    bench.reply(send, FetchResponse(ErrorCode.FENCED_LEADER_EPOCH, 3, 5, endpoints=endpoints))
    assert (role_of(bench), bench.raft.leader_id, bench.raft.epoch) == (Role.FOLLOWER, 3, 5)
    assert under_way(bench)[0::2] == (3, endpoints[0])


def test_the_answer_to_a_bootstrap_server_may_name_who_it_was() -> None:
    bench = RaftBench(voters=0, id=7).start()
    bench.wait_for_deadline()
    bench.reply(under_way(bench)._replace(to=2), FetchResponse(ErrorCode.NOT_LEADER_OR_FOLLOWER, -1, 0))
    bench.wait_for_deadline()
    assert under_way(bench).to == ANYBODY


def test_an_observer_looks_for_another_leader_when_its_own_is_silent_or_gone() -> None:
    for is_news in (False, True):
        bench = follower(1, id=7)
        bench.answer_fetch()
        if is_news:
            bench.step(PeerDied(2))
        else:
            while role_of(bench) is Role.FOLLOWER:
                bench.wait_for_deadline()
        assert (role_of(bench), bench.raft.leader_id) == (Role.UNATTACHED, -1)
        bench.wait_for_deadline()
        assert under_way(bench).to in (2, 3, 1)
        assert not bench.sent(VoteRequest)


def test_a_leader_that_says_it_leads_no_more_is_gone() -> None:
    bench = follower(1)
    bench.reply(under_way(bench), FetchResponse(ErrorCode.NOT_LEADER_OR_FOLLOWER, -1, 3))
    bench.wait(0.05)
    assert role_of(bench) is Role.PROSPECTIVE


@pytest.mark.parametrize("answers", [True, False])
def test_the_leader_is_heard_by_its_answers(answers: bool) -> None:
    bench = follower(1)
    send = under_way(bench)
    bench.wait(1.9)
    if answers:
        bench.answer_fetch(send=send)
    bench.wait(0.5)
    assert (role_of(bench) is Role.FOLLOWER) is answers
