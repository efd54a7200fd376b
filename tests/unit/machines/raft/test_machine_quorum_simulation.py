"""The quorum under faults, from seeds: `tests/worlds/raft_world.py` says what must hold. Without a rule it does not."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from tests.worlds.raft_world import Node, QuorumError, ToyLog, World, run_seed

from duramen.machines.raft import LoopWasLate, PeerDied, Raft, ReplicaKey, Role, Voters, leadership
from duramen.machines.raft.election import Election
from duramen.machines.raft.leadership import Leadership
from duramen.machines.raft.log_fetcher import LogFetcher
from duramen.machines.raft.raft_log import SAME, Comparison, compare
from duramen.machines.raft.raft_state import RaftState
from duramen.machines.raft.replica_progress import ReplicaProgress

SEEDS = range(8)
"""A few of the thousands that ran: each has kills, power cuts, cut links, pauses, late and repeated messages."""


def test_one_leader_an_epoch_and_what_is_committed_stays() -> None:
    worlds = [run_seed(seed) for seed in SEEDS]
    assert sum(world.elections for world in worlds) > 5 * len(worlds)
    assert sum(len(world.committed) for world in worlds) > 30 * len(worlds)


def test_a_seed_has_one_history() -> None:
    first, second = run_seed(3), run_seed(3)
    assert first.story == second.story
    assert first.committed == second.committed


def settled(seed: int, voters: int = 3) -> tuple[World, Node]:
    """A quorum without faults, and its leader."""
    world = World(seed, voters, observers=0, is_lossy=False)
    world.run(6.0)
    world.write()
    world.run(1.0)
    leader = world.leader()
    assert leader is not None
    return world, leader


def epoch(world: World) -> int:
    leader = world.leader()
    return leader.raft.epoch if leader is not None and leader.raft is not None else -1


def seconds_to_commit(world: World, above: int) -> float:
    """Until a leader of a later epoch has committed something of its own."""
    began = world.now
    while world.now < began + 30.0:
        world.run(0.005)
        leader = world.leader()
        raft = leader.raft if leader is not None else None
        if raft is not None and raft.epoch > above and raft.high_watermark >= 0:
            break
    return world.now - began


def test_a_process_that_is_gone_has_a_successor_at_once_a_silent_one_after_the_fetch_time_out() -> None:
    gone: list[float] = []
    silent: list[float] = []
    for seed in range(15):
        for times, is_news in ((gone, True), (silent, False)):
            world, leader = settled(seed)
            before = epoch(world)
            leader.stop(power_cut=False)
            for other in world.running() if is_news else ():
                other.later(world.random.uniform(0.0, 0.1), partial(other.step, PeerDied(leader.id)))
            times.append(seconds_to_commit(world, before))
    assert sorted(gone)[7] < 0.3
    assert max(gone) < 1.0
    assert sorted(silent)[7] < 2.5
    assert max(silent) < 4.0


def test_a_voter_that_was_cut_off_does_not_depose_the_leader() -> None:
    world, leader = settled(1)
    before = epoch(world)
    other = next(node for node in world.running() if node is not leader)
    links = {(other.id, node.id) for node in world.running()} | {(node.id, other.id) for node in world.running()}
    world.cut_links = set(links)
    world.run(30.0)
    world.cut_links.clear()
    world.heal()
    assert epoch(world) == before


def test_a_leader_that_is_cut_off_resigns_and_follows_its_successor() -> None:
    world, leader = settled(1)
    before = epoch(world)
    world.cut_links = {(leader.id, node.id) for node in world.running()} | {(n.id, leader.id) for n in world.running()}
    world.run(3.6)
    assert leader.raft is not None
    assert leader.raft.role is not Role.LEADER
    assert epoch(world) == before + 1
    world.heal()
    assert epoch(world) == before + 1


def test_loops_that_pause_for_less_than_a_time_out_elect_nobody() -> None:
    world, leader = settled(1)
    before = epoch(world)
    for node in world.running():
        node.busy_until = world.now + 1.9
    world.run(1.899)
    for node in world.running():
        node.step(LoopWasLate(1.9))  # before anything that is due
    world.run(10.0)
    assert epoch(world) == before
    assert world.leader() is leader


Patch = Callable[[pytest.MonkeyPatch], None]


def votes_unsynced(patch: pytest.MonkeyPatch) -> None:
    """Votes and candidacies leave before they are on stable storage."""
    take = RaftState.take_effects

    def at_once(self: RaftState) -> list[Any]:
        self.saved(1 << 60)
        return take(self)

    patch.setattr(RaftState, "take_effects", at_once)


def any_log(patch: pytest.MonkeyPatch) -> None:
    """Voters do not look at the candidate's log."""
    patch.setattr(Election, "_has_enough", lambda self, request: True)


def two_votes(patch: pytest.MonkeyPatch) -> None:
    """Voters forget whom they voted for."""
    vote = Election._vote

    def forgetful(self: Election, request: Any) -> bool:
        self._state.voted = None
        return vote(self, request)

    patch.setattr(Election, "_vote", forgetful)


def unsynced_acknowledged(patch: pytest.MonkeyPatch) -> None:
    """A follower names its log's end, synced or not."""
    ask = LogFetcher._ask

    def unsynced(self: LogFetcher) -> None:
        log = self._state.log
        assert isinstance(log, ToyLog)
        durable, log.durable_end = log.durable_end, log.end_offset
        ask(self)
        log.durable_end = durable

    patch.setattr(LogFetcher, "_ask", unsynced)


def own_end_unsynced(patch: pytest.MonkeyPatch) -> None:
    """The leader's own end counts before it is synced."""
    majority_end = ReplicaProgress.majority_end
    patch.setattr(ReplicaProgress, "majority_end", lambda self, voters, end: majority_end(self, voters, 1 << 60))


def earlier_epochs(patch: pytest.MonkeyPatch) -> None:
    """A leader commits what it found, before anything of its own."""
    begin = Leadership.begin

    def early(self: Leadership, granted: set[int]) -> None:
        begin(self, granted)
        self._began_at = 0

    patch.setattr(Leadership, "begin", early)


def resumed(patch: pytest.MonkeyPatch) -> None:
    """A leader that restarts leads on."""
    on_role = Raft._on_role

    def resume(self: Raft, before: Role) -> None:
        if self._state.role is Role.RESIGNED and before is Role.UNATTACHED:
            self._state.role = Role.LEADER
        on_role(self, before)

    patch.setattr(Raft, "_on_role", resume)


def any_disk(patch: pytest.MonkeyPatch) -> None:
    """A wiped disk votes and acknowledges as the voter it was."""
    receive = Election.receive
    patch.setattr(Voters, "is_voter", lambda self, key: key.id in self.by_id)
    patch.setattr(
        Election,
        "receive",
        lambda self, ticket, request: receive(self, ticket, request._replace(voter=self._state.local)),
    )
    end = ReplicaProgress._end

    def end_of_id(self: ReplicaProgress, key: ReplicaKey) -> int:
        return max([end(self, key), *(end(self, other) for other in self._replicas if other.id == key.id)])

    patch.setattr(ReplicaProgress, "_end", end_of_id)


def answers_out_of_place(patch: pytest.MonkeyPatch) -> None:
    """A follower takes an answer wherever its log ends by now, whichever Fetch it belongs to."""
    take, receive = LogFetcher._take, LogFetcher.receive_reply

    def anywhere(self: LogFetcher, request: Any, response: Any) -> None:
        log = self._state.log
        take(self, request._replace(offset=log.end_offset, last_epoch=log.latest_epoch), response)

    def anything(self: LogFetcher, to: int, request: Any, response: Any) -> None:
        if response is not None:
            self._in_flight = (to, request)
        receive(self, to, request, response)

    patch.setattr(LogFetcher, "_take", anywhere)
    patch.setattr(LogFetcher, "receive_reply", anything)


def histories_not_compared(patch: pytest.MonkeyPatch) -> None:
    """A leader takes every end that its log reaches for a piece of its own."""

    def blind(log: Any, offset: int, last_epoch: int) -> Comparison:
        return SAME if log.start_offset <= offset <= log.end_offset else compare(log, offset, last_epoch)

    patch.setattr(leadership, "compare", blind)


def half_decides(patch: pytest.MonkeyPatch) -> None:
    """Half of the voters, rounded down, elect and commit."""
    patch.setattr(Voters, "majority", property(lambda self: max(1, len(self) // 2)))


def snapshot_of_before(patch: pytest.MonkeyPatch) -> None:
    """A snapshot that was asked for earlier replaces the log, whatever another leader has sent since."""
    patch.setattr(Node, "wants", lambda self, snapshot: True)


RULES: dict[Patch, range] = {
    votes_unsynced: range(20),
    any_log: range(20),
    two_votes: range(10, 40),
    unsynced_acknowledged: range(20),
    own_end_unsynced: range(20),
    earlier_epochs: range(20),
    resumed: range(20),
    any_disk: range(20),
    answers_out_of_place: range(20),
    histories_not_compared: range(20),
    half_decides: range(20),
    snapshot_of_before: range(80, 100),
}
"""Rule that is taken out → seeds, one of the first of which finds that it is missing."""


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_without_a_rule_it_is_found(rule: Patch, monkeypatch: pytest.MonkeyPatch) -> None:
    rule(monkeypatch)
    for seed in RULES[rule]:
        try:
            run_seed(seed)
        except (QuorumError, AssertionError):
            return
    pytest.fail(f"{len(RULES[rule])} seeds do not miss this: {rule.__doc__}")
