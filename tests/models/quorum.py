"""The quorum of the metadata log as a model: votes, fetches, syncs, power cuts and wiped disks of three voters.

Without time: an election may begin at any moment, in any order with all else, and within its bounds the search is
exhaustive. Each rule can be taken out, and then the search has to find what it is for.

One step is what nothing can come between with another outcome. A vote is given and counted in one step, a Fetch is
asked, served and taken in one: an answer that comes later is taken only where nothing changed meanwhile, so it may as
well come at once; one that never comes is a step less. What is written and not yet synced is decided by the power cut:
it keeps any part of it. A message that comes *again*, at any time later, however often, is kept apart: `Bounds.late` of
them. A voter that hears of a later epoch does so when it votes or fetches in it, or stands above it. States that differ
only by the voters' names are one.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Final, NamedTuple

from tests.models.explorer import orders

Entry = tuple[int, int]
"""(epoch, number within it): no two appended entries are the same."""
Log = tuple[Entry, ...]

FOLLOWER, CANDIDATE, LEADER = 0, 1, 2
NOBODY: Final = -1
SOMEBODY: Final = -2
"""Whom a vote went to that no request asks for any more."""

RULES: Final = {
    "vote-synced": "a vote is on the disk before it is given",
    "one-vote": "a vote in an epoch is for one candidate",
    "longest-log": "nobody votes for a log that is behind his own",
    "durable-only": "an entry counts on a voter that has it on stable storage",
    "own-epoch": "a leader commits nothing before an entry of its own epoch",
    "no-resume": "a leader that restarts does not lead its epoch on",
    "same-disk": "only the disk that was formatted as the voter's counts as it",
    "answers-in-place": "a follower takes an answer only at the end that it asked from, in the epoch it asked in",
    "answers-to-this-log": "and not to a Fetch from before a cut, when its log is as long again",
    "histories": "a leader compares the follower's last epoch with its own history, not its length alone",
}


class Bounds(NamedTuple):
    """How much happens. entries: beside the one that every leader begins with; late: messages that come again."""

    epochs: int = 2
    entries: int = 0
    cuts: int = 0
    wipes: int = 0
    late: int = 0


class Voter(NamedTuple):
    """One voter. `kept_epoch`, `kept_vote`: what its disk says of these two; `synced`: entries that are safe there."""

    role: int = FOLLOWER
    epoch: int = 0
    voted: int = NOBODY
    kept_epoch: int = 0
    kept_vote: int = NOBODY
    log: Log = ()
    synced: int = 0
    began: int = 0
    """Of a leader: the index of its first own entry."""
    disk: int = 0
    """0: the one that was formatted; another number: it was wiped since."""
    ends: tuple[int, ...] = ()
    """Of a leader: how far each voter is on stable storage, as it said; -1: it has not."""
    granted: tuple[int, ...] = ()
    """Of a candidate: who voted for it."""


class Ballot(NamedTuple):
    """A candidate's request, again."""

    kind: int
    epoch: int
    candidate: int
    last: int
    length: int


class Fetch(NamedTuple):
    """A follower's request, again: what it acknowledged by it."""

    kind: int
    epoch: int
    follower: int
    leader: int
    length: int
    last: int
    disk: int


class Answer(NamedTuple):
    """A leader's answer, again or late: entries behind `length`; diverging: what the follower may keep, else -1."""

    kind: int
    epoch: int
    follower: int
    length: int
    last: int
    entries: Log
    diverging: int


Message = Ballot | Fetch | Answer


class State(NamedTuple):
    voters: tuple[Voter, ...]
    late: tuple[Message, ...] = ()
    led: tuple[int, ...] = ()
    """Epochs in which somebody was elected."""
    committed: Log = ()
    committed_in: tuple[int, ...] = ()
    """The leader's epoch when each of them was committed."""
    appended: tuple[int, ...] = ()
    """How many entries were ever appended in each epoch."""
    cuts: int = 0
    wipes: int = 0
    wrong: str = ""
    """What must never be, without names."""


class Quorum:
    """The steps of three voters. without: rules of RULES that do not hold."""

    def __init__(self, bounds: Bounds, without: str = "", count: int = 3) -> None:
        self.bounds = bounds
        self.count = count
        self.majority = count // 2 + 1
        self.rules = frozenset(RULES) - {without}

    def first(self) -> State:
        return State(tuple(Voter() for _ in range(self.count)), appended=(0,) * (self.bounds.epochs + 1))

    @staticmethod
    def violation(state: State) -> str | None:
        return state.wrong or None

    def steps(self, state: State) -> Iterator[tuple[str, State]]:
        bounds = self.bounds
        highest = max(voter.epoch for voter in state.voters)
        for index, voter in enumerate(state.voters):
            for epoch in range(voter.epoch + 1, min(bounds.epochs, highest + 1) + 1):
                if voter.disk == 0 or "same-disk" not in self.rules:
                    yield f"{index} stands in epoch {epoch}", self._stand(state, index, epoch)
            if state.cuts < bounds.cuts:
                for kept in range(voter.synced, len(voter.log) + 1):
                    yield f"{index} restarts with {kept} of {len(voter.log)} entries", self._cut(state, index, kept)
            if state.wipes < bounds.wipes and voter.disk == 0:
                yield f"{index} comes back with an empty disk", self._wipe(state, index)
            if voter.role == LEADER:
                if sum(state.appended) - len(state.led) < bounds.entries:
                    after = self._append(state, index)
                    yield f"{index} appends {after.voters[index].log[-1]}", after
                yield from self._commit(state, index)
                for other in range(self.count):
                    yield from self._fetch(state, other, index)
            elif voter.role == CANDIDATE:
                ballot = Ballot(0, voter.epoch, index, _last(voter.log), len(voter.log))
                for other in range(self.count):
                    yield from self._vote(state, ballot, other, "")
        for message in state.late:
            yield from self._again(state, message)

    def _again(self, state: State, message: Message) -> Iterator[tuple[str, State]]:
        if isinstance(message, Ballot):
            for index in range(self.count):
                yield from self._vote(state, message, index, " (a late request)")
        elif isinstance(message, Fetch):
            after = self._serve(state, message)[0]
            if after != state:
                yield f"{message.leader} hears again that {message.follower} has {message.length}", after
        else:
            after = self._take(state, message)
            if after != state:
                what = f"{message.follower} takes a late answer of epoch {message.epoch} at {message.length}"
                yield f"{what}: {len(after.voters[message.follower].log)} entries", after

    def _kept(self, state: State, message: Message) -> Iterator[State]:
        """As it is, and with this message still to come again."""
        yield state
        if len(state.late) < self.bounds.late and message not in state.late:
            yield state._replace(late=tuple(sorted((*state.late, message))))

    # ---- elections

    def _stand(self, state: State, index: int, epoch: int) -> State:
        state = self._adopt(state, index, epoch, index)
        return _with(state, index, role=CANDIDATE, granted=(index,))

    def _vote(self, state: State, ballot: Ballot, index: int, how: str) -> Iterator[tuple[str, State]]:
        voter = state.voters[index]
        if index == ballot.candidate or ballot.epoch < voter.epoch:
            return
        if ballot.epoch == voter.epoch:
            if voter.role != FOLLOWER:
                return
            if "one-vote" in self.rules and voter.voted not in (NOBODY, ballot.candidate):
                return
        behind = (ballot.last, ballot.length) < (_last(voter.log), len(voter.log))
        if behind and "longest-log" in self.rules:
            return
        after = self._adopt(state, index, ballot.epoch, ballot.candidate)
        candidate = after.voters[ballot.candidate]
        counts = "same-disk" not in self.rules or voter.disk == 0
        if (candidate.role, candidate.epoch) == (CANDIDATE, ballot.epoch) and counts and index not in candidate.granted:
            granted = tuple(sorted((*candidate.granted, index)))
            after = _with(after, ballot.candidate, granted=granted)
            if len(granted) >= self.majority:
                after = self._win(after, ballot.candidate)
        for each in self._kept(after, ballot):
            if each != state:
                yield f"{index} votes for {ballot.candidate} in {ballot.epoch}{how}", each

    def _win(self, state: State, index: int) -> State:
        voter = state.voters[index]
        wrong = f"two elections in epoch {voter.epoch}" if voter.epoch in state.led else ""
        earlier = sum(1 for epoch in state.committed_in if epoch < voter.epoch)  # a late winner leads nobody
        if voter.log[:earlier] != state.committed[:earlier]:
            wrong = wrong or f"elected in epoch {voter.epoch} without committed entries"
        after = _with(state, index, role=LEADER, granted=(), ends=(NOBODY,) * self.count, began=len(voter.log))
        return self._append(after._replace(led=tuple(sorted({*state.led, voter.epoch})), wrong=wrong), index)

    def _adopt(self, state: State, index: int, epoch: int, vote: int) -> State:
        voter = state.voters[index]
        voted = vote if epoch > voter.epoch or vote != NOBODY else voter.voted
        voter = voter._replace(role=FOLLOWER, epoch=epoch, voted=voted, ends=(), began=0, granted=())
        if "vote-synced" in self.rules:
            voter = voter._replace(kept_epoch=epoch, kept_vote=voted)
        return _set(state, index, voter)

    # ---- the log

    def _append(self, state: State, index: int) -> State:
        voter = state.voters[index]
        counts = list(state.appended)
        entry = (voter.epoch, counts[voter.epoch])
        counts[voter.epoch] += 1
        return _with(state, index, log=(*voter.log, entry))._replace(appended=tuple(counts))

    def _fetch(self, state: State, index: int, leader: int) -> Iterator[tuple[str, State]]:
        """A follower hears of the leader, acknowledges what it has by then synced, and takes what it gets."""
        voter, epoch = state.voters[index], state.voters[leader].epoch
        if index == leader or epoch < voter.epoch or (epoch == voter.epoch and voter.role == LEADER):
            return
        asking = self._adopt(state, index, epoch, NOBODY)
        if "durable-only" in self.rules:
            asking = _with(asking, index, synced=len(voter.log))
        fetch = Fetch(1, epoch, index, leader, len(voter.log), _last(voter.log), voter.disk)
        for asked in self._kept(asking, fetch):
            served, answers = self._serve(asked, fetch)
            for answer in answers:
                taken = self._take(served, answer)
                what = f"{index} fetches from {leader} at {fetch.length}, has {len(taken.voters[index].log)} then"
                for each in self._kept(taken, answer):
                    if each != state:
                        yield what, each
                for each in self._kept(served, answer):
                    if each != state and each != served:
                        yield f"{index} fetches from {leader} at {fetch.length}, its answer is late", each

    def _serve(self, state: State, fetch: Fetch) -> tuple[State, list[Answer]]:
        leader = state.voters[fetch.leader]
        if leader.role != LEADER or leader.epoch != fetch.epoch:
            return state, []
        asked = (2, fetch.epoch, fetch.follower, fetch.length, fetch.last)
        if "histories" in self.rules:
            agreed = _agreed(leader.log, fetch.length, fetch.last)
        else:
            agreed = min(fetch.length, len(leader.log))
        if agreed < fetch.length:
            return state, [Answer(*asked, (), agreed)]
        if "same-disk" not in self.rules or fetch.disk == 0:
            ends = list(leader.ends)
            ends[fetch.follower] = max(ends[fetch.follower], fetch.length)
            state = _with(state, fetch.leader, ends=tuple(ends))
        more = leader.log[fetch.length :]
        sizes = sorted({0, 1, len(more)}) if more else [0]
        return state, [Answer(*asked, more[:size], -1) for size in sizes]

    def _take(self, state: State, answer: Answer) -> State:
        voter = state.voters[answer.follower]
        in_place = answer.epoch == voter.epoch and answer.length == len(voter.log)
        if answer.last != _last(voter.log) and "answers-to-this-log" in self.rules:
            in_place = False
        if voter.role != FOLLOWER or ("answers-in-place" in self.rules and not in_place):
            return state
        log = voter.log[: answer.length]
        if len(log) < answer.length:
            return state
        log = log[: answer.diverging] if answer.diverging >= 0 else log + answer.entries
        kept = 0
        while kept < min(len(log), voter.synced) and log[kept] == voter.log[kept]:
            kept += 1
        return _with(state, answer.follower, log=log, synced=kept)

    def _commit(self, state: State, index: int) -> Iterator[tuple[str, State]]:
        leader = state.voters[index]
        ends = sorted(
            (len(leader.log) if each == index else leader.ends[each] for each in range(self.count)), reverse=True
        )
        end = ends[self.majority - 1]
        known = len(state.committed) if leader.log[: len(state.committed)] == state.committed else -1
        if end <= known or end <= 0 or ("own-epoch" in self.rules and end <= leader.began):
            return
        if "durable-only" in self.rules:
            state = _with(state, index, synced=max(leader.synced, end))
        wrong = ""
        both = min(end, len(state.committed))
        if leader.log[:both] != state.committed[:both]:
            wrong = "other entries are committed than those that were"
        elif end <= len(state.committed):
            return
        epochs = (*state.committed_in, *(leader.epoch for _ in range(end - len(state.committed))))
        yield f"{index} commits {end}", state._replace(committed=leader.log[:end], committed_in=epochs, wrong=wrong)

    # ---- faults

    def _cut(self, state: State, index: int, kept: int) -> State:
        """A power cut or a kill: of what was not synced any part is there again."""
        voter = state.voters[index]
        after = voter._replace(
            role=FOLLOWER,
            epoch=voter.kept_epoch,
            voted=voter.kept_vote,
            log=voter.log[:kept],
            synced=kept,
            began=0,
            ends=(),
            granted=(),
        )
        if "no-resume" not in self.rules and voter.role == LEADER:
            after = after._replace(role=LEADER, ends=(NOBODY,) * self.count, began=min(voter.began, kept))
        return _set(state, index, after)._replace(cuts=state.cuts + 1)

    def _wipe(self, state: State, index: int) -> State:
        return _set(state, index, Voter(disk=state.wipes + 1))._replace(wipes=state.wipes + 1)

    # ---- names

    def canonical(self, state: State) -> State:
        """The same state with the voters in the one order that stands for all."""
        if "vote-synced" in self.rules and "no-resume" in self.rules:
            state = self._forgotten(state)
        keys = [_nameless(voter) for voter in state.voters]
        return min(_renamed(state, order) for order in orders(keys))

    def _forgotten(self, state: State) -> State:
        """Without what can have no effect any more, as epochs do not fall: candidacies and votes nobody asks about."""
        asking = {(ballot.epoch, ballot.candidate) for ballot in state.late if isinstance(ballot, Ballot)}
        voters = list(state.voters)
        for index, voter in enumerate(state.voters):
            if voter.role == CANDIDATE:
                if sum(self._may_vote(other, at, voter, index) for at, other in enumerate(voters)) >= self.majority:
                    asking.add((voter.epoch, index))
                else:
                    voters[index] = voter._replace(role=FOLLOWER, granted=())
        for index, voter in enumerate(voters):
            if voter.voted >= 0 and (voter.epoch, voter.voted) not in asking:
                voters[index] = voter._replace(voted=SOMEBODY, kept_vote=SOMEBODY)
        after = tuple(voters)
        return state if after == state.voters else state._replace(voters=after)

    def _may_vote(self, voter: Voter, at: int, candidate: Voter, index: int) -> bool:
        """Whether it did, or still can, vote for this candidate."""
        if at in candidate.granted or voter.epoch < candidate.epoch:
            return True
        if voter.epoch > candidate.epoch or voter.role != FOLLOWER:
            return False
        return "one-vote" not in self.rules or voter.voted in (NOBODY, index)


@lru_cache(maxsize=500_000)
def _nameless(voter: Voter) -> tuple[object, ...]:
    """What of a voter does not name others."""
    return (*voter[:2], min(voter.voted, 0), voter[3], *voter[5:9], sorted(voter.ends), len(voter.granted))


def _renamed(state: State, order: list[int]) -> State:
    """The voters in another order: who was `order[0]` is 0 then."""
    if order == list(range(len(order))):
        return state
    new = {old: index for index, old in enumerate(order)} | {NOBODY: NOBODY, SOMEBODY: SOMEBODY}
    voters = tuple(
        voter._replace(
            voted=new[voter.voted],
            kept_vote=new[voter.kept_vote],
            ends=tuple(voter.ends[old] for old in order) if voter.ends else (),
            granted=tuple(sorted(new[old] for old in voter.granted)),
        )
        for voter in (state.voters[old] for old in order)
    )
    late: list[Message] = []
    for message in state.late:
        if isinstance(message, Ballot):
            late.append(message._replace(candidate=new[message.candidate]))
        elif isinstance(message, Fetch):
            late.append(message._replace(follower=new[message.follower], leader=new[message.leader]))
        else:
            late.append(message._replace(follower=new[message.follower]))
    return state._replace(voters=voters, late=tuple(sorted(late)))


def _set(state: State, index: int, voter: Voter) -> State:
    return state._replace(voters=(*state.voters[:index], voter, *state.voters[index + 1 :]))


def _with(state: State, index: int, **changed: object) -> State:
    return _set(state, index, state.voters[index]._replace(**changed))  # type: ignore[arg-type]


def _last(log: Log) -> int:
    return log[-1][0] if log else 0


@lru_cache(maxsize=100_000)
def _agreed(log: Log, length: int, last: int) -> int:
    """How much of a follower's log, of this length and last epoch, the leader's may have, too (KIP-595)."""
    if length == 0 or (length <= len(log) and log[length - 1][0] == last):
        return length
    # The end of the last epoch of the leader's that is not above the follower's last one.
    below = sum(1 for epoch, _ in log if epoch <= last)
    return min(below, length - 1)
