"""What leaves before the epoch and the vote are on stable storage, and what waits."""

from __future__ import annotations

from tests.worlds.raft_bench import RaftBench, key, role_of

from duramen.errors import ErrorCode
from duramen.machines.raft import (
    Answer,
    BecameLeader,
    BeginEpochRequest,
    CommitAdvanced,
    ElectionState,
    FetchRequest,
    FetchResponse,
    Halt,
    LeaderChanged,
    Received,
    Role,
    SaveState,
    Send,
    StateSaved,
    VoteRequest,
    VoteResponse,
)


def test_a_vote_is_on_the_disk_before_it_is_given() -> None:
    bench = RaftBench(saves=False).start()
    assert bench.receive(bench.vote_request(epoch=5)) is None
    assert bench.only(SaveState).state == ElectionState(-1, 5, *key(2))
    bench.is_saved()
    response = bench.only(Answer).response
    assert isinstance(response, VoteResponse)
    assert response.granted


def test_a_candidacy_is_on_the_disk_before_it_is_sent() -> None:
    bench = RaftBench(saves=False).start()
    bench.grant(bench.to_prospective()[0])
    assert role_of(bench) is Role.CANDIDATE
    assert bench.only(SaveState).state == ElectionState(-1, 1, *key(1))
    assert not bench.sent(VoteRequest)
    bench.is_saved()
    assert [send.request.epoch for send in bench.sent(VoteRequest)] == [1, 1]


def test_an_epoch_is_on_the_disk_before_anything_of_it_leaves() -> None:
    bench = RaftBench(saves=False).start()
    bench.wait_for_deadline()
    (fetch,) = bench.sent(FetchRequest)
    bench.reply(fetch, FetchResponse(ErrorCode.FENCED_LEADER_EPOCH, 3, 4))
    assert bench.only(SaveState).state.leader_epoch == 4
    assert not bench.sent(FetchRequest)
    bench.is_saved()
    assert [(send.to, send.request.epoch) for send in bench.sent(FetchRequest)] == [(3, 4)]


def test_an_earlier_save_does_not_free_what_a_later_one_is_for() -> None:
    bench = RaftBench(saves=False).start()
    bench.receive(bench.vote_request(epoch=5))
    first = bench.version
    bench.receive(bench.vote_request(id=3, epoch=6))
    assert bench.version == first + 1
    bench.step(StateSaved(first))
    assert [answer.response.epoch for answer in bench.of(Answer)] == [5]
    bench.is_saved()
    assert [answer.response.epoch for answer in bench.of(Answer)] == [6]


def test_a_later_save_frees_all_before_in_order() -> None:
    bench = RaftBench(saves=False).start()
    bench.receive(bench.vote_request(epoch=5))
    bench.receive(bench.vote_request(id=3, epoch=6))
    bench.is_saved()
    assert [answer.response.epoch for answer in bench.of(Answer)] == [5, 6]


def test_a_request_of_an_epoch_that_is_over_does_not_leave() -> None:
    bench = RaftBench(saves=False).start()
    bench.grant(bench.to_prospective()[0])
    bench.receive(bench.vote_request(epoch=6))
    bench.is_saved()
    assert not bench.sent(VoteRequest)


def test_who_leads_is_saved_and_not_waited_for() -> None:
    bench = RaftBench(state=ElectionState(leader_epoch=4), saves=False).start()
    begin = BeginEpochRequest(4, 2, key(1))
    assert bench.receive(begin) is not None
    assert bench.only(SaveState).state == ElectionState(2, 4)
    assert bench.sent(FetchRequest)


def test_a_sole_voter_leads_in_the_step_of_its_start_and_nobody_reads_before_the_save() -> None:
    bench = RaftBench(voters=1, state=None, saves=False).start()
    assert role_of(bench) is Role.LEADER
    kinds = [type(effect) for effect in bench.effects]
    assert kinds == [SaveState, BecameLeader, LeaderChanged, CommitAdvanced]
    assert bench.only(SaveState).state == ElectionState(1, 1, *key(1))
    # An observer that read what a power cut takes would have it in an epoch that this voter leads again.
    assert bench.receive(bench.fetch(id=7, offset=0)) is None
    assert not bench.of(Answer)
    bench.is_saved()
    assert not bench.of(Send)
    assert len(bench.effects) == 1


def test_two_leaders_of_one_epoch_end_it_all() -> None:
    bench = RaftBench(state=ElectionState(2, 4)).start()
    bench.receive(BeginEpochRequest(4, 3, key(1)))
    assert "two leaders, 2 and 3" in bench.only(Halt).reason
    assert bench.raft.deadline == float("inf")
    assert bench.step(Received(9, 2, bench.vote_request(epoch=9))) == []


def test_a_change_of_leader_is_told_once() -> None:
    bench = RaftBench().start()
    assert bench.only(LeaderChanged) == LeaderChanged(-1, 0)
    bench.receive(BeginEpochRequest(3, 2, key(1)))
    assert bench.of(LeaderChanged) == [LeaderChanged(2, 3)]
    bench.receive(BeginEpochRequest(3, 2, key(1)))
    assert not bench.of(LeaderChanged)
