"""A leader's epoch: announced, served, committed, and given up in time."""

from __future__ import annotations

import pytest
from tests.worlds.raft_bench import SETTINGS, RaftBench, key, role_of

from duramen.errors import ErrorCode
from duramen.machines.raft import (
    Answer,
    AppendFailed,
    BeginEpochRequest,
    BeginEpochResponse,
    CommitAdvanced,
    ElectionState,
    EndEpochRequest,
    EndEpochResponse,
    FetchResponse,
    Halt,
    LeaderChanged,
    OffsetEpoch,
    ReadLog,
    ReadSnapshot,
    Response,
    Role,
    SaveState,
    SnapshotRequest,
    SnapshotResponse,
    Stopping,
)


def fetched(response: Response | None) -> FetchResponse:
    assert isinstance(response, FetchResponse)
    return response


def led(epochs: tuple[int, ...] = (), voters: int = 3, syncs: bool = True) -> RaftBench:
    """A leader of epoch 1 above `epochs`, whose first record is not committed."""
    bench = RaftBench(
        voters=voters, epochs=epochs, state=ElectionState(leader_epoch=max(epochs, default=0)), syncs=syncs
    )
    return bench.start().to_leader()


# ---- the announcement


def test_others_are_told_until_they_acknowledge_or_fetch() -> None:
    bench = RaftBench().start()
    bench.grant(bench.to_candidate()[0])
    two, three = bench.sent(BeginEpochRequest)
    assert two.request == BeginEpochRequest(1, 1, key(2), bench.raft.voters.endpoints(1))
    bench.reply(two, BeginEpochResponse(ErrorCode.NONE, 1, 1))
    bench.reply(three, None)
    bench.wait_for_deadline()
    assert bench.sent(BeginEpochRequest) == [three]
    bench.receive(bench.fetch(3), 3)
    bench.reply(three, None)
    bench.wait(1.0)
    assert not bench.sent(BeginEpochRequest)


# ---- the commit point


def test_nothing_counts_before_it_is_on_stable_storage_at_a_majority() -> None:
    bench = led(syncs=False)
    bench.append()
    assert bench.raft.high_watermark == -1
    bench.receive(bench.fetch(2, offset=2))
    assert bench.raft.high_watermark == -1  # the leader's own end counts like the others'
    bench.sync()
    assert bench.only(CommitAdvanced).offset == 2
    bench.append()
    bench.receive(bench.fetch(2, offset=3))
    bench.receive(bench.fetch(3, offset=3))
    assert bench.only(CommitAdvanced).offset == 3  # two of three are a majority without the leader


def test_nothing_of_earlier_epochs_is_committed_before_the_own_leader_change_is() -> None:
    bench = led(epochs=(1, 1, 2))
    assert bench.log.end_offset == 4
    bench.receive(bench.fetch(2, offset=3))
    assert (bench.raft.high_watermark, bench.of(CommitAdvanced)) == (-1, [])
    assert not bench.raft.is_caught_up
    bench.receive(bench.fetch(2, offset=4))
    assert bench.only(CommitAdvanced).offset == 4
    assert bench.raft.is_caught_up
    assert bench.raft.high_watermark == 4


def test_an_end_that_is_not_in_the_leaders_log_does_not_count() -> None:
    bench = led(epochs=(1, 1))
    response = fetched(bench.receive(bench.fetch(2, offset=9, last=3)))
    assert response.diverging == OffsetEpoch(3, 2)
    assert bench.raft.high_watermark == -1


def test_the_commit_point_never_moves_back() -> None:
    bench = led()
    bench.receive(bench.fetch(2, offset=1))
    assert bench.raft.high_watermark == 1
    bench.receive(bench.fetch(2, offset=0))
    assert bench.raft.high_watermark == 1


# ---- Fetch


def test_what_is_there_is_read_uncommitted_or_not() -> None:
    bench = led()
    request = bench.fetch(2, offset=0)
    assert bench.receive(request) is None
    assert bench.only(ReadLog)[1:] == (0, request)
    answer = bench.raft.fetch_answer(request, "records")
    assert (answer.error, answer.leader_id, answer.epoch, answer.records) == (ErrorCode.NONE, 1, 1, "records")
    assert answer.high_watermark == -1
    assert answer.endpoints[0].host == "node1"


def test_who_is_deposed_while_it_reads_gives_nothing_away() -> None:
    bench = led()
    request = bench.fetch(2, offset=0)
    bench.receive(request)
    bench.receive(bench.vote_request(epoch=7), 3)
    answer = bench.raft.fetch_answer(request, "records")
    assert (answer.error, answer.epoch, answer.records) == (ErrorCode.FENCED_LEADER_EPOCH, 7, None)


def test_a_fetch_waits_for_more() -> None:
    bench = led()
    request = bench.fetch(2)
    assert bench.receive(request) is None
    assert not bench.of(ReadLog)
    bench.append()
    assert bench.only(ReadLog)[1:] == (1, request)
    bench.append()
    assert not bench.of(ReadLog)


def test_a_fetch_waits_no_longer_than_it_says() -> None:
    bench = led()
    bench.receive(bench.fetch(2, wait=0.3))
    bench.wait(0.29)
    assert not bench.of(Answer)
    bench.wait(0.02)
    response = fetched(bench.only(Answer).response)
    assert (response.error, response.records) == (ErrorCode.NONE, None)
    assert bench.receive(bench.fetch(3, wait=0.0), 3) is not None


def test_a_commit_point_that_the_follower_does_not_know_is_answered_at_once() -> None:
    bench = led()
    assert bench.receive(bench.fetch(2, offset=1, hw=-1)) is not None  # it is what commits offset 1
    assert fetched(bench.only(Answer).response).high_watermark == 1
    assert bench.receive(bench.fetch(3, offset=1, hw=0), 3) is not None
    assert bench.receive(bench.fetch(3, offset=1, hw=1), 3) is None
    bench.append()
    bench.receive(bench.fetch(3, offset=2, hw=1), 3)
    assert bench.raft.high_watermark == 2
    assert fetched(bench.only(Answer).response).high_watermark == 2


def test_a_commit_wakes_those_that_do_not_know_it() -> None:
    bench = led()
    bench.receive(bench.fetch(3, offset=1, hw=-1), 3)
    assert fetched(bench.only(Answer).response).high_watermark == 1
    bench.append()
    bench.receive(bench.fetch(7, offset=2, hw=1), 7)
    bench.receive(bench.fetch(8, offset=2, hw=5), 8)
    bench.receive(bench.fetch(2, offset=2, hw=5), 2)
    answers = bench.of(Answer)
    assert [fetched(answer.response).high_watermark for answer in answers] == [2]


def test_a_newer_fetch_of_a_replica_ends_the_older_with_nothing() -> None:
    bench = led()
    bench.receive(bench.fetch(2))
    bench.receive(bench.fetch(2))
    response = fetched(bench.only(Answer).response)
    assert (response.error, response.records) == (ErrorCode.NONE, None)
    bench.append()
    assert len(bench.of(ReadLog)) == 1


def test_requests_of_other_epochs_and_to_who_does_not_lead_are_refused() -> None:
    bench = led(epochs=(1, 4))
    assert bench.raft.epoch == 5
    assert fetched(bench.receive(bench.fetch(2, epoch=4))).error is ErrorCode.FENCED_LEADER_EPOCH
    assert fetched(bench.receive(bench.fetch(2, epoch=6))).error is ErrorCode.UNKNOWN_LEADER_EPOCH
    assert fetched(bench.receive(bench.fetch(1))).error is ErrorCode.INVALID_REQUEST
    follower = RaftBench().follow(2, epoch=5)
    response = fetched(follower.receive(follower.fetch(3, epoch=5), 3))
    assert (response.error, response.leader_id) == (ErrorCode.NOT_LEADER_OR_FOLLOWER, 2)
    assert response.endpoints[0].host == "node2"


def test_below_its_start_the_leader_names_its_snapshot() -> None:
    bench = led(epochs=(1, 1, 1))
    bench.log.take_snapshot(3, 2)
    response = fetched(bench.receive(bench.fetch(2, offset=0)))
    assert (response.snapshot, response.log_start) == (OffsetEpoch(3, 1), 2)


def test_without_a_sound_snapshot_where_one_is_needed_the_node_stops() -> None:
    bench = led(epochs=(1, 1, 1))
    bench.log.take_snapshot(3, 2)
    bench.log.snapshot_id = None
    bench.receive(bench.fetch(2, offset=0))
    assert "snapshot" in bench.only(Halt).reason


def test_pieces_of_snapshots_are_for_the_epoch_that_is() -> None:
    bench = led(epochs=(1, 1, 1))
    request = SnapshotRequest(key(2), bench.raft.epoch, OffsetEpoch(3, 1), 0, 100)
    bench.receive(request)
    assert bench.only(ReadSnapshot).request == request
    assert bench.raft.snapshot_answer(request, 8, b"piece").data == b"piece"
    response = bench.receive(request._replace(epoch=1))
    assert isinstance(response, SnapshotResponse)
    assert response.error is ErrorCode.FENCED_LEADER_EPOCH


# ---- the resignation


def test_without_fetches_from_a_majority_a_leader_resigns() -> None:
    bench = led(voters=5)
    began = bench.now
    bench.receive(bench.fetch(2))
    bench.wait(2.9)
    bench.receive(bench.fetch(2))
    bench.receive(bench.fetch(7), 7)  # an observer is no majority
    bench.wait(0.2)
    assert bench.now > began + 1.5 * SETTINGS.fetch_timeout
    assert (role_of(bench), bench.raft.leader_id) == (Role.RESIGNED, -1)
    ended = [send.request for send in bench.sent(EndEpochRequest)]
    assert len(ended) == 4


def test_with_fetches_from_a_majority_it_leads_on() -> None:
    bench = led()
    for _ in range(10):
        bench.wait(2.9)
        bench.receive(bench.fetch(3), 3)
    assert role_of(bench) is Role.LEADER


def test_a_sole_voter_leads_on_without_anybody() -> None:
    bench = RaftBench(voters=1).start()
    bench.wait(1000.0)
    assert role_of(bench) is Role.LEADER
    assert bench.raft.deadline == float("inf")


def test_a_clean_stop_names_the_successors_by_log_end() -> None:
    bench = led()
    bench.append()
    bench.receive(bench.fetch(3), 3)
    bench.receive(bench.fetch(2, offset=1), 2)
    bench.step(Stopping())
    assert role_of(bench) is Role.RESIGNED
    requests = [send.request for send in bench.sent(EndEpochRequest)]
    assert requests == [EndEpochRequest(1, 1, (key(3), key(2)), bench.raft.voters.endpoints(1))] * 2
    bench.wait(60.0)
    assert role_of(bench) is Role.RESIGNED  # it does not stand again


def test_the_end_is_told_until_it_is_acknowledged() -> None:
    bench = led()
    bench.step(Stopping())
    two, three = bench.sent(EndEpochRequest)
    bench.reply(two, EndEpochResponse(ErrorCode.NONE, 1, -1))
    bench.reply(three, None)
    bench.wait_for_deadline()
    assert bench.sent(EndEpochRequest) == [three]


def test_whose_own_log_takes_no_more_writes_resigns() -> None:
    bench = led()
    bench.step(AppendFailed())
    assert role_of(bench) is Role.RESIGNED
    assert bench.of(LeaderChanged) == [LeaderChanged(-1, 1)]


def test_who_waits_at_a_leader_that_is_deposed_is_told_so() -> None:
    bench = led()
    bench.receive(bench.fetch(2))
    bench.receive(bench.vote_request(id=3, epoch=4), 3)
    refused = [answer.response for answer in bench.of(Answer) if isinstance(answer.response, FetchResponse)]
    assert [(each.error, each.epoch) for each in refused] == [(ErrorCode.NOT_LEADER_OR_FOLLOWER, 4)]
    assert bench.only(SaveState).state.leader_epoch == 4


def test_a_leader_that_is_deposed_counts_nothing_any_more() -> None:
    bench = led()
    request = bench.fetch(2)
    bench.receive(bench.vote_request(id=3, epoch=4), 3)
    assert fetched(bench.receive(request)).error is ErrorCode.FENCED_LEADER_EPOCH
    bench.sync()
    assert not bench.of(CommitAdvanced)
    assert bench.raft.replica_states(bench.now) == []


def test_what_describe_quorum_asks_for() -> None:
    bench = led()
    bench.receive(bench.fetch(2))
    states = bench.raft.replica_states(bench.now)
    assert [(state.id, state.log_end, state.last_fetch) for state in states] == [
        (1, 1, bench.now),
        (2, 1, bench.now),
        (3, -1, -1.0),
    ]


@pytest.mark.parametrize("disk", [0, 1])
def test_only_the_voters_own_disk_acknowledges(disk: int) -> None:
    bench = led()
    bench.receive(bench.fetch(2)._replace(replica=key(2, disk)))
    assert bench.raft.high_watermark == (1 if disk == 0 else -1)
