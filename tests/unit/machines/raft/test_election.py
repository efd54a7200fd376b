"""Votes that are given, and votes that are counted."""

from __future__ import annotations

import pytest
from tests.worlds.raft_bench import SETTINGS, RaftBench, key, role_of

from duramen.errors import ErrorCode
from duramen.machines.raft import (
    BecameLeader,
    BeginEpochRequest,
    ElectionState,
    FetchRequest,
    PeerDied,
    Response,
    Role,
    SaveState,
    Stopping,
    VoteRequest,
    VoteResponse,
)


def granted(response: Response | None) -> bool:
    assert isinstance(response, VoteResponse)
    return response.granted


# ---- votes given


def test_one_vote_an_epoch_given_again_to_the_same_candidate() -> None:
    bench = RaftBench().start()
    assert granted(bench.receive(bench.vote_request(id=2, epoch=5)))
    assert not granted(bench.receive(bench.vote_request(id=3, epoch=5)))
    assert granted(bench.receive(bench.vote_request(id=2, epoch=5)))
    assert granted(bench.receive(bench.vote_request(id=3, epoch=6)))


def test_a_vote_is_remembered_by_id_and_directory_id() -> None:
    bench = RaftBench(state=ElectionState(-1, 5, *key(2))).start()
    assert granted(bench.receive(bench.vote_request(id=2, epoch=5)))
    wiped = bench.vote_request(id=2, epoch=5)._replace(candidate=key(2, disk=1))
    assert not granted(bench.receive(wiped))


@pytest.mark.parametrize(
    ("last_epoch", "offset", "is_enough"),
    [(2, 3, True), (2, 4, True), (3, 1, True), (2, 2, False), (1, 9, False), (-1, 0, False)],
)
@pytest.mark.parametrize("pre_vote", [False, True])
def test_nobody_votes_for_a_log_that_is_behind_its_own(
    last_epoch: int, offset: int, is_enough: bool, pre_vote: bool
) -> None:
    bench = RaftBench(epochs=(1, 2, 2), state=ElectionState(leader_epoch=2)).start()
    request = bench.vote_request(epoch=3, last_epoch=last_epoch, offset=offset, pre_vote=pre_vote)
    assert granted(bench.receive(request)) is is_enough
    assert bench.raft.epoch == 3


def test_an_earlier_epoch_is_told_the_later_one() -> None:
    bench = RaftBench(state=ElectionState(2, 7)).start()
    for pre_vote in (False, True):
        response = bench.receive(bench.vote_request(id=3, epoch=6, pre_vote=pre_vote), 3)
        assert isinstance(response, VoteResponse)
        assert response[:4] == (ErrorCode.FENCED_LEADER_EPOCH, 7, 2, False)
        assert response.endpoints[0].host == "node2"


def test_a_wiped_disk_does_not_answer_for_the_voter_it_was() -> None:
    bench = RaftBench(voters=0, disk=1).start()
    response = bench.receive(bench.vote_request(epoch=5))
    assert isinstance(response, VoteResponse)
    assert (response.error, response.granted) == (ErrorCode.INVALID_VOTER_KEY, False)
    assert bench.raft.epoch == 0


def test_whoever_knows_the_leader_votes_for_nobody_else() -> None:
    bench = RaftBench(state=ElectionState(leader_epoch=4)).start()
    bench.receive(BeginEpochRequest(4, 2, key(1)))
    assert not granted(bench.receive(bench.vote_request(id=3, epoch=4)))


def test_a_pre_vote_changes_neither_epoch_nor_vote() -> None:
    bench = RaftBench().start()
    assert granted(bench.receive(bench.vote_request(id=2, epoch=0, pre_vote=True)))
    assert not bench.of(SaveState)
    assert granted(bench.receive(bench.vote_request(id=3, epoch=0, pre_vote=True)))
    assert bench.raft.epoch == 0


def test_a_pre_vote_is_refused_by_a_leader_and_by_who_hears_it() -> None:
    leader = RaftBench().start().to_leader()
    assert not granted(leader.receive(leader.vote_request(epoch=1, pre_vote=True)))
    follower = RaftBench().follow(2, epoch=1)
    assert not granted(follower.receive(follower.vote_request(id=3, epoch=1, pre_vote=True)))


def test_a_pre_vote_is_given_by_who_knows_a_leader_and_has_not_heard_it() -> None:
    bench = RaftBench(state=ElectionState(2, 4)).start()
    assert role_of(bench) is Role.FOLLOWER
    assert granted(bench.receive(bench.vote_request(id=3, epoch=4, pre_vote=True)))
    bench.answer_fetch(send=RaftBench(state=ElectionState(2, 4)).start().sent(FetchRequest)[0])
    assert not granted(bench.receive(bench.vote_request(id=3, epoch=4, pre_vote=True)))


def test_a_pre_vote_is_given_by_who_knows_that_the_leader_is_gone() -> None:
    bench = RaftBench().follow(2, epoch=1)
    bench.step(PeerDied(3))
    assert not granted(bench.receive(bench.vote_request(id=3, epoch=1, pre_vote=True)))
    bench.step(PeerDied(2))
    assert granted(bench.receive(bench.vote_request(id=3, epoch=1, pre_vote=True)))


def test_whoever_gave_a_pre_vote_lets_the_other_one_go_first() -> None:
    bench = RaftBench().follow(2, epoch=1)
    bench.step(PeerDied(2))
    assert bench.raft.deadline == pytest.approx(bench.now + 0.025)
    bench.receive(bench.vote_request(id=3, epoch=1, pre_vote=True))
    assert bench.raft.deadline == pytest.approx(bench.now + 0.075)


# ---- votes asked for


def test_who_hears_nothing_asks_first_whether_it_would_be_elected() -> None:
    bench = RaftBench().start()
    began = bench.now
    asked = bench.to_prospective()
    assert bench.now == pytest.approx(began + 1.5 * SETTINGS.election_timeout)
    assert [(send.to, send.request.epoch) for send in asked] == [(2, 0), (3, 0)]
    assert asked[0].endpoint is not None
    assert asked[0].endpoint.host == "node2"
    assert all(isinstance(send.request, VoteRequest) and send.request.pre_vote for send in asked)
    assert not bench.of(SaveState)


def test_a_majority_of_pre_votes_makes_a_candidate_a_majority_of_votes_a_leader() -> None:
    bench = RaftBench(voters=5).start()
    asked = bench.to_prospective()
    bench.grant(asked[0])
    assert role_of(bench) is Role.PROSPECTIVE
    bench.grant(asked[0])  # the same one twice is one
    assert role_of(bench) is Role.PROSPECTIVE
    bench.grant(asked[1])
    assert role_of(bench) is Role.CANDIDATE
    assert bench.only(SaveState).state == ElectionState(-1, 1, *key(1))
    asked = bench.sent(VoteRequest)
    assert all(isinstance(send.request, VoteRequest) and not send.request.pre_vote for send in asked)
    bench.grant(asked[3])
    assert role_of(bench) is Role.CANDIDATE
    bench.grant(asked[1])
    assert role_of(bench) is Role.LEADER
    assert bench.only(BecameLeader) == BecameLeader(1, (1, 3, 5))


def test_pre_votes_do_not_elect() -> None:
    bench = RaftBench(voters=5).start()
    asked = bench.to_prospective()
    bench.grant(asked[0])
    bench.grant(asked[1])
    bench.grant(asked[2])
    bench.grant(asked[3])
    assert role_of(bench) is Role.CANDIDATE


def test_votes_of_an_earlier_candidacy_do_not_elect() -> None:
    bench = RaftBench().start()
    before = bench.to_candidate()
    bench.wait_for_deadline()
    while role_of(bench) is not Role.PROSPECTIVE:
        bench.wait_for_deadline()
    bench.grant(bench.sent(VoteRequest)[0])
    assert (role_of(bench), bench.raft.epoch) == (Role.CANDIDATE, 2)
    bench.grant(before[1])
    assert role_of(bench) is Role.CANDIDATE


def test_a_vote_counts_for_the_directory_id_that_was_asked() -> None:
    bench = RaftBench().start()
    send = bench.to_candidate()[0]
    request = send.request
    assert isinstance(request, VoteRequest)
    wiped = send._replace(request=request._replace(voter=key(2, disk=1)))
    bench.grant(wiped)
    assert role_of(bench) is Role.CANDIDATE


def test_who_is_not_among_the_voters_never_stands() -> None:
    for bench in (RaftBench(disk=1), RaftBench(id=7), RaftBench(voters=0)):
        bench.start()
        bench.wait(60.0)
        assert role_of(bench) is Role.UNATTACHED
        assert not bench.sent(VoteRequest)


def test_votes_that_were_lost_are_asked_for_again() -> None:
    bench = RaftBench().start()
    send = bench.to_prospective()[0]
    bench.reply(send, None)
    assert bench.raft.deadline == pytest.approx(bench.now + SETTINGS.retry_backoff)
    bench.wait_for_deadline()
    assert bench.sent(VoteRequest) == [send]


def test_a_lost_election_is_repeated_after_a_pause_that_grows() -> None:
    bench = RaftBench(state=ElectionState(leader_epoch=3)).start()
    pauses = []
    for _ in range(5):
        asked = bench.to_prospective()
        bench.grant(asked[0], granted=False)
        assert role_of(bench) is Role.PROSPECTIVE
        bench.grant(asked[1], granted=False)
        pauses.append(bench.raft.deadline - bench.now)
        bench.wait_for_deadline()
    assert pauses == pytest.approx([0.05, 0.1, 0.2, 0.4, 0.5])


def test_two_that_split_their_votes_beside_a_dead_third_do_not_wait_for_it() -> None:
    bench = RaftBench().follow(2, epoch=1)
    bench.step(PeerDied(2))
    bench.grant(bench.to_prospective()[1])
    asked = bench.sent(VoteRequest)
    bench.grant(asked[1], granted=False)
    assert bench.raft.deadline > bench.now + 1.0
    bench.reply(asked[0], None)
    bench.wait(0.06)
    assert role_of(bench) is Role.PROSPECTIVE


def test_a_voter_that_comes_back_is_asked_during_the_pause() -> None:
    bench = RaftBench(voters=5).start()
    asked = bench.to_candidate()
    for send in asked[:3]:
        bench.reply(send, None)
    bench.wait(0.03)
    assert role_of(bench) is Role.CANDIDATE
    again = bench.sent(VoteRequest)
    bench.grant(again[0])
    bench.grant(again[1])
    assert role_of(bench) is Role.LEADER


def test_a_pre_vote_that_is_lost_leads_back_to_the_leader_that_others_hear() -> None:
    bench = RaftBench().follow(2, epoch=1)
    asked = bench.to_prospective()
    bench.grant(asked[1], granted=False, leader_id=2)
    assert role_of(bench) is Role.PROSPECTIVE
    bench.reply(asked[0], VoteResponse(ErrorCode.NONE, 1, 2, False))
    assert role_of(bench) is Role.FOLLOWER
    assert bench.sent(FetchRequest)[0].to == 2


def test_the_leaders_own_refusal_leads_back_to_it_at_once() -> None:
    bench = RaftBench(voters=5).follow(2, epoch=1)
    asked = bench.to_prospective()
    bench.grant(asked[0], granted=False, leader_id=2)
    assert role_of(bench) is Role.FOLLOWER


def test_a_refusal_by_who_still_hears_the_dead_leader_is_soon_asked_again() -> None:
    bench = RaftBench().follow(2, epoch=1)
    bench.step(PeerDied(2))
    assert bench.raft.deadline <= bench.now + 0.05
    asked = bench.to_prospective()
    bench.reply(asked[0], None)
    bench.grant(asked[1], granted=False, leader_id=2)
    assert role_of(bench) is Role.PROSPECTIVE
    for _ in range(3):
        refused = bench.now
        while not (again := [send for send in bench.sent(VoteRequest) if send.to == 3]):
            bench.wait_for_deadline()
        assert 0.01 <= bench.now - refused <= 0.05
        bench.grant(again[0], granted=False, leader_id=2)
    bench.wait(0.05)
    bench.grant(bench.sent(VoteRequest)[-1])
    assert role_of(bench) is Role.CANDIDATE


def test_news_that_prove_wrong_lead_back_to_the_leader() -> None:
    bench = RaftBench().follow(2, epoch=1)
    bench.step(PeerDied(2))
    asked = bench.to_prospective()
    bench.wait(0.0)
    bench.reply(asked[0], VoteResponse(ErrorCode.NONE, 1, 2, False))
    assert role_of(bench) is Role.FOLLOWER
    bench.answer_fetch()
    assert not granted(bench.receive(bench.vote_request(id=3, epoch=1, pre_vote=True)))


def test_a_candidate_that_hears_of_a_leader_follows_it() -> None:
    bench = RaftBench().start()
    bench.to_candidate()
    bench.receive(BeginEpochRequest(1, 3, key(1)), 3)
    assert (role_of(bench), bench.raft.leader_id) == (Role.FOLLOWER, 3)


def test_who_stops_is_not_elected_any_more() -> None:
    bench = RaftBench().start()
    asked = bench.to_candidate()
    bench.step(Stopping())
    bench.grant(asked[0])
    assert role_of(bench) is Role.CANDIDATE


def test_after_two_seconds_without_their_leader_two_of_three_have_another_one() -> None:
    """A silent death: fetch time-out, pre-vote, vote."""
    bench = RaftBench().follow(2, epoch=1)
    died = bench.now
    asked = bench.to_prospective()
    assert SETTINGS.fetch_timeout <= bench.now - died <= 1.1 * SETTINGS.fetch_timeout
    bench.grant(asked[1])
    bench.grant(bench.sent(VoteRequest)[1])
    assert (role_of(bench), bench.raft.epoch) == (Role.LEADER, 2)
