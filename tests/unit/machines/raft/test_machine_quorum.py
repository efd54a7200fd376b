"""A replica from its start on: what it remembers, what it resigns from, and news of its peers."""

from __future__ import annotations

import pytest
from tests.worlds.raft_bench import SETTINGS, RaftBench, key, quorum, role_of
from tests.worlds.raft_world import Entry, ToyLog

from duramen.errors import ErrorCode
from duramen.machines.raft import (
    Answer,
    BecameLeader,
    BeginEpochRequest,
    BeginEpochResponse,
    CommitAdvanced,
    ElectionState,
    EndEpochRequest,
    EndEpochResponse,
    FetchRequest,
    FetchResponse,
    Halt,
    LogMoved,
    LoopWasLate,
    PeerDied,
    Role,
    SaveState,
    Started,
    Stopping,
    VoteRequest,
)

# ---- the start


def test_a_sole_voter_leads_in_the_very_step_of_its_start() -> None:
    bench = RaftBench(voters=1, epochs=(1, 4), state=ElectionState(1, 4, *key(1)))
    bench.step(Started())
    assert bench.only(BecameLeader) == BecameLeader(5, (1,))
    assert bench.only(CommitAdvanced).offset == 3
    assert not bench.sent(EndEpochRequest)


def test_a_directory_without_quorum_state_is_a_cluster_of_one() -> None:
    bench = RaftBench(voters=1, epochs=(1, 4), state=None).start()
    assert (role_of(bench), bench.raft.epoch) == (Role.LEADER, 5)


def test_an_epoch_of_the_log_that_was_not_saved_is_not_led_again() -> None:
    """A sole voter writes before its file is synced."""
    bench = RaftBench(voters=1, epochs=(1, 6), state=ElectionState(1, 5, *key(1))).start()
    assert bench.raft.epoch == 7


def test_without_quorum_state_beside_other_voters_it_does_not_start() -> None:
    bench = RaftBench(epochs=(1,), state=None).start()
    assert "quorum-state is missing" in bench.only(Halt).reason
    assert len(bench.effects) == 1  # nothing is saved: the next start would find a file


def test_a_log_that_begins_behind_every_snapshot_does_not_start() -> None:
    log = ToyLog(quorum(3))
    log.append(*(Entry(1, at) for at in range(4)))
    log.take_snapshot(3, 3)
    log.snapshot_id = None
    assert "no snapshot" in RaftBench(log=log).start().only(Halt).reason


def test_what_a_snapshot_has_is_committed_and_nothing_else_is_known_to_be() -> None:
    log = ToyLog(quorum(3))
    log.append(*(Entry(1, at) for at in range(4)))
    log.take_snapshot(3, 1)
    assert RaftBench(log=log).start().raft.high_watermark == 3
    assert RaftBench(epochs=(1, 1)).start().raft.high_watermark == -1


def test_a_leader_that_restarts_is_resigned_and_says_so() -> None:
    bench = RaftBench(epochs=(1, 4), state=ElectionState(1, 4, *key(1))).start()
    assert (role_of(bench), bench.raft.epoch, bench.raft.leader_id) == (Role.RESIGNED, 4, -1)
    assert [send.request for send in bench.sent(EndEpochRequest)] == [
        EndEpochRequest(4, 1, (key(2), key(3)), bench.raft.voters.endpoints(1))
    ] * 2
    answer = bench.receive(bench.fetch(2, epoch=4, offset=2))
    assert isinstance(answer, FetchResponse)
    assert (answer.error, answer.leader_id) == (ErrorCode.NOT_LEADER_OR_FOLLOWER, -1)
    bench.to_prospective()
    bench.grant(bench.sent(VoteRequest)[0])
    assert bench.raft.epoch == 5


def test_who_is_told_that_it_leads_and_does_not_know_it_does_not_lead() -> None:
    """Its state was not synced when the power went."""
    bench = RaftBench(state=ElectionState(-1, 4, *key(1))).start()
    bench.wait_for_deadline()
    send = bench.sent(FetchRequest)[0]
    bench.reply(send, FetchResponse(ErrorCode.NOT_LEADER_OR_FOLLOWER, 1, 4))
    assert (role_of(bench), bench.raft.leader_id) == (Role.UNATTACHED, -1)


def test_a_vote_survives_a_restart() -> None:
    bench = RaftBench(state=ElectionState(-1, 4, *key(3))).start()
    bench.receive(bench.vote_request(id=2, epoch=4))
    assert not bench.of(SaveState)


def test_a_follower_goes_on_with_the_leader_it_had() -> None:
    bench = RaftBench(state=ElectionState(3, 4)).start()
    assert (role_of(bench), bench.raft.leader_id) == (Role.FOLLOWER, 3)
    assert bench.sent(FetchRequest)[0].to == 3
    assert not bench.of(SaveState)


def test_an_observer_becomes_a_voter_when_the_log_says_so() -> None:
    bench = RaftBench(voters=0).start()
    bench.wait(10.0)
    bench.log.append(Entry(1, 1, quorum(3)))
    bench.log.durable_end = 1
    bench.step(LogMoved())
    assert bench.to_prospective()


# ---- BeginQuorumEpoch, EndQuorumEpoch


def test_a_new_leader_is_followed() -> None:
    bench = RaftBench().start()
    response = bench.receive(BeginEpochRequest(3, 2, key(1)))
    assert isinstance(response, BeginEpochResponse)
    assert (response.error, response.epoch, response.leader_id) == (ErrorCode.NONE, 3, 2)
    assert bench.sent(FetchRequest)[0].to == 2


def test_a_begin_for_another_disk_or_of_an_earlier_epoch_is_refused() -> None:
    bench = RaftBench(state=ElectionState(leader_epoch=4)).start()
    response = bench.receive(BeginEpochRequest(5, 2, key(1, disk=1)))
    assert isinstance(response, BeginEpochResponse)
    assert response.error is ErrorCode.INVALID_VOTER_KEY
    response = bench.receive(BeginEpochRequest(3, 2, key(1)))
    assert isinstance(response, BeginEpochResponse)
    assert (response.error, response.epoch) == (ErrorCode.FENCED_LEADER_EPOCH, 4)
    assert role_of(bench) is Role.UNATTACHED


@pytest.mark.parametrize(("successors", "pause"), [((1, 3), 0.0), ((3, 1), 0.075), ((3,), 0.075), ((3, 4, 1), 0.125)])
def test_successors_stand_in_their_order(successors: tuple[int, ...], pause: float) -> None:
    bench = RaftBench(voters=5).follow(2, epoch=1)
    request = EndEpochRequest(1, 2, tuple(key(id) for id in successors))
    response = bench.receive(request)
    assert isinstance(response, EndEpochResponse)
    assert response.error is ErrorCode.NONE
    assert bench.raft.deadline == pytest.approx(bench.now + pause)
    bench.wait_for_deadline()
    assert role_of(bench) is Role.PROSPECTIVE


def test_the_end_of_an_earlier_epoch_means_nothing() -> None:
    bench = RaftBench().follow(2, epoch=4)
    before = bench.raft.deadline
    response = bench.receive(EndEpochRequest(3, 3, (key(1),)), 3)
    assert isinstance(response, EndEpochResponse)
    assert response.error is ErrorCode.FENCED_LEADER_EPOCH
    assert bench.raft.deadline == before


def test_who_stops_does_not_stand() -> None:
    bench = RaftBench().follow(2, epoch=1)
    bench.step(Stopping())
    bench.step(PeerDied(2))
    bench.wait(60.0)
    assert not bench.sent(VoteRequest)


# ---- news and late loops


def test_the_death_of_the_leader_is_news_not_silence() -> None:
    bench = RaftBench().follow(2, epoch=1)
    assert bench.raft.deadline > bench.now + 2
    bench.step(PeerDied(3))
    assert bench.raft.deadline > bench.now + 2
    bench.step(PeerDied(2))
    assert bench.raft.deadline <= bench.now + 0.05
    bench.wait_for_deadline()
    assert role_of(bench) is Role.PROSPECTIVE


@pytest.mark.parametrize("jitter", [0.0, 0.99])
def test_not_all_followers_begin_at_once(jitter: float) -> None:
    bench = RaftBench(jitter=jitter).follow(2, epoch=1)
    bench.step(PeerDied(2))
    assert bench.raft.deadline == pytest.approx(bench.now + 0.05 * jitter)


def test_a_loop_that_was_late_by_half_a_time_out_restarts_it_once() -> None:
    bench = RaftBench().follow(2, epoch=1)
    before = bench.raft.deadline
    bench.now += 1.9
    bench.step(LoopWasLate(SETTINGS.fetch_timeout / 2 - 0.01))
    assert bench.raft.deadline == before
    bench.step(LoopWasLate(1.9))
    assert bench.raft.deadline == pytest.approx(bench.now + 2.1)
    bench.now += 1.9
    bench.step(LoopWasLate(1.9))
    assert bench.raft.deadline == pytest.approx(bench.now + 0.2)


def test_behind_an_answer_of_the_leader_a_late_loop_is_excused_again() -> None:
    bench = RaftBench().follow(2, epoch=1)
    send = bench.sent(FetchRequest)[0]
    bench.now += 1.9
    bench.step(LoopWasLate(1.9))
    bench.answer_fetch(send=send)
    bench.now += 1.9
    bench.step(LoopWasLate(1.9))
    assert bench.raft.deadline == pytest.approx(bench.now + 2.1)


def test_a_leader_whose_loop_was_late_waits_for_its_majority_once_more() -> None:
    bench = RaftBench().start().to_leader()
    bench.now += 2.9
    bench.step(LoopWasLate(2.9))
    bench.wait(2.9)
    assert role_of(bench) is Role.LEADER
    bench.step(LoopWasLate(2.9))
    bench.wait(0.2)
    assert role_of(bench) is Role.RESIGNED


def test_a_late_loop_does_not_hide_that_the_leader_is_gone() -> None:
    bench = RaftBench().follow(2, epoch=1)
    bench.step(PeerDied(2))
    bench.step(LoopWasLate(1.9))
    assert bench.raft.deadline <= bench.now + 0.05


def test_nothing_is_due_before_the_deadline() -> None:
    bench = RaftBench().follow(2, epoch=1)
    bench.wait(1.0)
    assert not bench.of(Answer)
    assert bench.effects == []
