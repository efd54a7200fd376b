"""The replication of one partition as a model: three brokers, a controller, fetches, elections, restarts, lost disks.

Without time, and within its bounds exhaustive, as the quorum's (`tests.models.quorum`) is. Each rule can be taken out,
and then the search has to find what it is for.

The metadata log is what is committed of it, once; each broker has read it up to some entry, and acts by that. A leader
that does not know that it is deposed is a broker that has not read so far. A controller that does not know it can
commit nothing: it refuses what it is asked, or says (without a rule) what is not so. Producers are not drawn: an append
is one of `acks=all`, acknowledged when the watermark has passed it, and `acks=1` might be acknowledged wherever a
leader has a lease. A lease is not drawn either: whom the controller does not fence has one, at worst
(`tests.models.lease` shows when that holds).

One step is what nothing can come between with another outcome. A Fetch is asked, served and taken in one, and a
follower syncs what it has when it asks; any part of what is not synced outlives a power cut. What comes again, or late,
is kept apart: `Bounds.late` of it. An answer to AlterPartition is the entry that it made, read: it comes or is lost.
States that differ only by the brokers' names are one.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from tests.models.explorer import orders
from tests.models.replica_log import Log, cut_point, diverges, is_prefix, last_epoch
from tests.models.replication_state import (
    NOBODY,
    Answer,
    Broker,
    Entry,
    Fetch,
    Request,
    State,
    changed_in,
    forgotten,
    nameless,
    put,
    renamed,
)

RULES: Final = {
    "durable-only": "a record counts on a replica that has it on stable storage",
    "maximal-isr": "the watermark waits for whom the leader proposed, and for whom it proposed to leave out",
    "min-isr": "the watermark stands still while fewer are in sync than min.insync.replicas",
    "alone-by-lease": "a leader that is alone in sync moves its watermark only with a lease",
    "compare-and-set": "AlterPartition is taken only at the partition epoch that it was made for",
    "repeats-stay": "what was proposed twice may be taken until the partition epoch has moved, whatever was answered",
    "proposals-outlive-fencing": "who was fenced and leads its epoch on counts whom it had proposed before",
    "committed-first": "AlterPartition is answered when it is committed",
    "fetched-incarnation": "who joins does so with the broker epoch of the Fetch that caught up",
    "newer-replaces": "the end of a newer broker epoch replaces the older one's, also a smaller one",
    "older-refused": "a Fetch of an older broker epoch than the known one counts nothing",
    "forget-ends": "a leader begins its epoch knowing nobody's end",
    "join-at-watermark": "who joins has all below the watermark",
    "join-at-start": "who joins has all below the start of the leader's epoch",
    "fetch-epoch": "a Fetch counts only in the leader epoch that it names",
    "compared-first": "a Fetch whose history is another one acknowledges nothing",
    "histories": "a leader compares the follower's last epoch with its own history, not its length alone",
    "answers-in-place": "a follower takes an answer only at the end that it asked from, in the epoch it asked in",
    "answers-to-this-log": "and not to a Fetch from before a cut, when its log is as long again",
    "watermark-compared": "a follower takes the leader's watermark only where their histories agree",
    "in-sync-only": "only who is in sync is elected",
    "restart-ends-epoch": "a registration fences the older incarnation: it leads that epoch no more, nor is in sync",
    "own-registration": "a broker acts by nothing that it read from before its own registration",
    "lost-disk": "a replica whose disk was lost is not elected for being the last one in sync",
    "unfence-when-read": "a broker is unfenced when it has read that it was fenced",
}


class Bounds(NamedTuple):
    """How much happens. changes: of the leader; alters: of the ISR that are taken; late: Fetches and answers that come
    again; repeats: AlterPartition is sent twice; deposed: a controller that still answers; out: how many brokers begin
    outside the ISR."""

    brokers: int = 3

    changes: int = 1
    records: int = 1
    alters: int = 0
    fences: int = 0
    restarts: int = 0
    wipes: int = 0
    unclean: int = 0
    late: int = 0
    repeats: int = 0
    deposed: int = 0
    min_isr: int = 2
    stable: bool = True
    out: int = 0


class Replication:
    """The steps of three brokers. without: a rule of RULES that does not hold."""

    def __init__(self, bounds: Bounds, without: str = "") -> None:
        self.bounds = bounds
        self.count = bounds.brokers
        self.rules = frozenset(RULES) - {without}
        self.is_whole = "own-registration" in self.rules
        self.is_synced = not bounds.restarts and "durable-only" in self.rules
        self.is_compared = "compare-and-set" in self.rules
        self.most_epochs = 2 + 2 * (bounds.changes + bounds.fences + bounds.restarts + bounds.wipes)

    def first(self) -> State:
        count = self.count
        entry = Entry(0, 1, 0, tuple(range(count - self.bounds.out)))
        leader = Broker(start=0, ends=self._no_ends())
        return State(
            (leader, *(Broker() for _ in range(count - 1))),
            (entry,),
            (False,) * count,
            (0,) * count,
            (0,) * count,
            appended=(0,) * self.most_epochs,
        )

    def _no_ends(self) -> tuple[tuple[int, int], ...]:
        return ((-1, -1),) * self.count

    # ---- what must be

    def violation(self, state: State) -> str | None:
        if state.wrong:
            return state.wrong
        brokers = state.brokers
        entry = state.metadata[-1]
        for index in entry.isr:
            broker = brokers[index]
            if broker.is_up and broker.log[: len(state.shown)] != state.shown:
                return "in sync without what was acknowledged"
        if not state.excused:
            for index, broker in enumerate(brokers):
                for other in brokers[index + 1 :]:
                    both = min(broker.watermark, other.watermark)
                    if broker.log[:both] != other.log[:both]:
                        return "two replicas differ below their watermarks"
        for index, broker in enumerate(brokers):
            if broker.watermark > len(broker.log):
                return "a watermark beyond the log's end"
            if self._leads(state, index) and not state.fenced[index] and self._is_cut_off(state, broker.read):
                return "a leader that was fenced may acknowledge acks=1"
        return None

    @staticmethod
    def _is_cut_off(state: State, read: int) -> bool:
        """Whether the epoch that a leader believes in ended by its being fenced."""
        epoch = state.metadata[read].epoch
        return next((entry.is_cut_off for entry in state.metadata[read:] if entry.epoch > epoch), False)

    @staticmethod
    def _leads(state: State, index: int) -> bool:
        broker = state.brokers[index]
        return broker.start >= 0 and broker.is_up and state.metadata[broker.read].leader == index

    # ---- steps

    def steps(self, state: State) -> Iterator[tuple[str, State]]:
        for what, after in self._steps(state):
            yield what, forgotten(after, self.is_whole, self.is_synced, self.is_compared)

    def _steps(self, state: State) -> Iterator[tuple[str, State]]:
        for index, broker in enumerate(state.brokers):
            if broker.is_up:
                if broker.read < len(state.metadata) - 1:
                    yield f"{index} reads {state.metadata[broker.read + 1]}", self._read(state, index)
                if self._leads(state, index):
                    yield from self._lead(state, index)
            yield from self._fail(state, index)
        yield from self._control(state)
        for message in state.late:
            if isinstance(message, Fetch):
                after = self._serve(state, message)[0]
                if after != state:
                    yield f"{message.leader} hears late that {message.follower} has {message.end}", after
            else:
                after = self._take(state, message)
                if after != state:
                    yield f"{message.follower} takes a late answer of epoch {message.epoch} at {message.end}", after

    def _kept(self, state: State, message: Fetch | Answer) -> Iterator[State]:
        if len(state.late) < self.bounds.late and message not in state.late:
            yield state._replace(late=tuple(sorted((*state.late, message))))

    # ---- a leader

    def _lead(self, state: State, index: int) -> Iterator[tuple[str, State]]:
        leader = state.brokers[index]
        if sum(state.appended) < self.bounds.records:
            after = self._append(state, index)
            yield f"{index} appends {after.brokers[index].log[-1]}", after
        moved = self._advance(state, index)
        if moved is not None:
            yield f"{index} moves its watermark to {moved.brokers[index].watermark}", moved
        for other in range(self.count):
            if other != index:
                yield from self._fetch(state, other, index)
        yield from self._propose(state, index)
        if leader.asked and not leader.is_repeated and self.bounds.repeats:
            yield f"{index} asks again for {leader.asked}", self._repeat(state, index)

    def _append(self, state: State, index: int) -> State:
        broker = state.brokers[index]
        epoch = state.metadata[broker.read].epoch
        counts = list(state.appended)
        record = (epoch, counts[epoch])
        counts[epoch] += 1
        return changed_in(state, index, log=(*broker.log, record))._replace(appended=tuple(counts))

    def _advance(self, state: State, index: int) -> State | None:
        """The watermark, as far as the maximal ISR is."""
        leader = state.brokers[index]
        entry = state.metadata[leader.read]
        isr = leader.believed or entry.isr
        if "maximal-isr" in self.rules:
            maximal = {index, *isr, *leader.asked, *leader.kept}
        else:
            maximal = {index, *(leader.asked or isr)}
        if len(isr) < self.bounds.min_isr and "min-isr" in self.rules:
            return None
        is_alone = maximal == {index}
        if is_alone and state.fenced[index] and "alone-by-lease" in self.rules:
            return None
        end = min(len(leader.log) if other == index else leader.ends[other][1] for other in maximal)
        if end <= leader.watermark:
            return None
        synced = leader.synced
        if self.bounds.stable and "durable-only" in self.rules:
            synced = max(synced, end)
        state = changed_in(state, index, watermark=end, synced=synced)
        return self._show(state, index, end, is_alone)

    def _show(self, state: State, index: int, end: int, is_alone: bool) -> State:
        """Records become visible: nobody who leads a later epoch may lack them."""
        log = state.brokers[index].log[:end]
        epoch = state.metadata[state.brokers[index].read].epoch
        if epoch < state.excused and not (is_alone and state.unclean):
            return state
        wrong = ""
        if not is_prefix(log, state.shown):
            wrong = "another record is acknowledged than one that was"
        for other, broker in enumerate(state.brokers):
            if self._leads(state, other) and state.metadata[broker.read].epoch > epoch and broker.log[:end] != log:
                wrong = "acknowledged by a deposed leader, and its successor has it not"
        if is_alone and state.metadata[-1].is_unclean and state.metadata[-1].epoch > epoch:
            wrong = "acknowledged by a leader alone behind an unclean election"
        if self.bounds.stable and not self.bounds.wipes:
            copies = sum(broker.log[: min(end, broker.synced)] == log for broker in state.brokers)
            if copies < min(self.bounds.min_isr, self.count):
                wrong = "acknowledged with fewer copies than min.insync.replicas"
        if end > len(state.shown):
            shown_in = (*state.shown_in, *(epoch for _ in range(end - len(state.shown))))
            state = state._replace(shown=log, shown_in=shown_in)
        return state._replace(wrong=wrong)

    # ---- followers

    def _fetch(self, state: State, index: int, leader: int) -> Iterator[tuple[str, State]]:
        follower, entry = state.brokers[index], state.metadata[state.brokers[leader].read]
        mine = state.metadata[follower.read]
        if not follower.is_up or mine.leader != leader:
            return
        if mine.epoch != entry.epoch and "fetch-epoch" in self.rules:
            return
        if self.bounds.stable and "durable-only" in self.rules:
            state = changed_in(state, index, synced=len(follower.log))
        log = follower.log
        fetch = Fetch(1, mine.epoch, leader, index, follower.incarnation, len(log), last_epoch(log))
        for kept in self._kept(state, fetch):
            yield f"{index} fetches from {leader} at {fetch.end}: late", kept
        served, answers = self._serve(state, fetch)
        for each in (served, *self._kept(served, fetch)):
            yield f"{index} fetches from {leader} at {fetch.end}: its answer is lost", each
            for answer in answers:
                taken = self._take(each, answer)
                yield f"{index} fetches from {leader} at {fetch.end}, has {len(taken.brokers[index].log)} then", taken
                for late in self._kept(each, answer):
                    yield f"{index} fetches from {leader} at {fetch.end}: the answer is late", late

    def _serve(self, state: State, fetch: Fetch) -> tuple[State, list[Answer]]:
        leader = state.brokers[fetch.leader]
        if not self._leads(state, fetch.leader):
            return state, []
        epoch = state.metadata[leader.read].epoch
        if epoch != fetch.epoch and "fetch-epoch" in self.rules:
            return state, []
        incarnation, end = leader.ends[fetch.follower]
        if fetch.incarnation < incarnation and "older-refused" in self.rules:
            return state, []
        cut: tuple[int, ...] = ()
        if "histories" in self.rules:
            cut = diverges(leader.log, fetch.end, fetch.last)
        elif fetch.end > len(leader.log):
            cut = (last_epoch(leader.log), len(leader.log))
        if not cut or "compared-first" not in self.rules:
            if fetch.incarnation > incarnation and "newer-replaces" in self.rules:
                end = fetch.end
            else:
                end = max(end, fetch.end)
            ends = list(leader.ends)
            ends[fetch.follower] = (max(fetch.incarnation, incarnation), min(end, len(leader.log)))
            state = changed_in(state, fetch.leader, ends=tuple(ends))
        more = () if cut else leader.log[fetch.end :]
        sizes = sorted({1, len(more)}) if more else [0]
        watermark = leader.watermark
        asked = (2, epoch, fetch.follower, fetch.end, fetch.last)
        return state, [Answer(*asked, more[:size], cut, watermark) for size in sizes]

    def _take(self, state: State, answer: Answer) -> State:
        index = answer.follower
        broker = state.brokers[index]
        entry = state.metadata[broker.read]
        if not broker.is_up or entry.leader == index:
            return state
        in_place = answer.epoch == entry.epoch and answer.end == len(broker.log)
        if answer.last != last_epoch(broker.log) and "answers-to-this-log" in self.rules:
            in_place = False
        if not in_place and ("answers-in-place" in self.rules or answer.end > len(broker.log)):
            return state
        log, watermark = broker.log[: answer.end] + answer.records, broker.watermark
        if answer.cut:
            log = broker.log[: cut_point(broker.log, *answer.cut)]
        if not answer.cut:
            watermark = max(watermark, min(answer.watermark, len(log)))
        elif "watermark-compared" not in self.rules:
            watermark = max(watermark, min(answer.watermark, len(broker.log)))
        synced = min(len(log), broker.synced)
        while log[:synced] != broker.log[:synced]:
            synced -= 1
        wrong = state.wrong
        if len(log) < watermark:
            if self.bounds.stable and not state.excused:
                wrong = "a replica cuts below its watermark"
            watermark = len(log)
        after = changed_in(state, index, log=log, synced=synced, watermark=watermark)
        return after._replace(wrong=wrong)

    # ---- the ISR

    def _propose(self, state: State, index: int) -> Iterator[tuple[str, State]]:
        leader = state.brokers[index]
        entry = state.metadata[leader.read]
        if leader.asked or leader.believed or state.alters == self.bounds.alters:
            return
        wanted: list[tuple[int, ...]] = [entry.isr] if leader.kept else []
        for other in range(self.count):
            if other == index:
                continue
            if other in entry.isr:
                wanted.append(tuple(each for each in entry.isr if each != other))
            elif self._may_join(leader, other):
                wanted.append(tuple(sorted((*entry.isr, other))))
        for isr in wanted:
            members = []
            for each in isr:
                incarnation = leader.ends[each][0]
                if each == index:
                    incarnation = leader.incarnation
                elif "fetched-incarnation" not in self.rules or each in entry.isr:
                    incarnation = state.registered[each]
                members.append((each, incarnation))
            request = Request(entry.epoch, entry.partition_epoch, tuple(members))
            after = changed_in(state, index, asked=isr, is_repeated=False)
            yield f"{index} asks for ISR {isr}", _asking(after, request)

    def _may_join(self, leader: Broker, other: int) -> bool:
        end = leader.ends[other][1]
        if end < 0:
            return False
        if "join-at-watermark" in self.rules and end < leader.watermark:
            return False
        return "join-at-start" not in self.rules or end >= leader.start

    def _repeat(self, state: State, index: int) -> State:
        """No answer came: the request is sent again, and of the first nobody knows."""
        leader = state.brokers[index]
        entry = state.metadata[leader.read]
        requests = [
            request._replace(is_repeated=True)
            if (request.epoch, request.partition_epoch) == (entry.epoch, entry.partition_epoch)
            and tuple(member for member, _ in request.members) == leader.asked
            else request
            for request in state.requests
        ]
        return changed_in(state, index, is_repeated=True)._replace(requests=tuple(sorted(set(requests))))

    # ---- the controller

    def _control(self, state: State) -> Iterator[tuple[str, State]]:
        entry = state.metadata[-1]
        for index in range(self.count):
            if not state.fenced[index] and state.fences < self.bounds.fences:
                for leader, after in self._fence(state, index):
                    after = after._replace(fences=state.fences + 1)
                    yield f"the controller fences {index}; {leader} leads", after
            broker = state.brokers[index]
            has_read = broker.read >= state.must_read[index] or "unfence-when-read" not in self.rules
            if state.fenced[index] and broker.is_up and has_read and broker.incarnation == state.registered[index]:
                yield from self._unfence(state, index)
            may_lead = not state.fenced[index] and (index in entry.isr or "in-sync-only" not in self.rules)
            if may_lead and entry.leader not in (index, NOBODY) and state.changes < self.bounds.changes:
                yield f"the controller moves the leader to {index}", self._elect(state, index, entry.isr)
            if (
                state.unclean < self.bounds.unclean
                and entry.leader == NOBODY
                and not state.fenced[index]
                and index not in entry.isr
            ):
                yield f"an unclean election of {index}", self._elect_unclean(state, index)
        for request in state.requests:
            yield from self._alter(state, request)

    def _fence(
        self, state: State, index: int, is_lost: bool = False, begins_anew: bool = False
    ) -> Iterator[tuple[int, State]]:
        """It leaves the ISR, but for the last member, and leads no more; what nobody else can lead it leads on later.

        begins_anew: it is registered as another process.
        """
        entry = state.metadata[-1]
        isr = tuple(each for each in entry.isr if each != index) or (() if is_lost else entry.isr)
        fenced = (*state.fenced[:index], True, *state.fenced[index + 1 :])
        must_read = (*state.must_read[:index], len(state.metadata), *state.must_read[index + 1 :])
        state = state._replace(fenced=fenced, must_read=must_read)
        if index not in (entry.leader, entry.kept):
            yield entry.leader, _entered(state, entry._replace(isr=isr))
            return
        electable = [each for each in isr if not fenced[each]] or [NOBODY]
        for leader in electable:
            if leader == NOBODY and isr and not begins_anew:
                yield leader, _entered(state, entry._replace(leader=NOBODY, is_cut_off=True, kept=index))
            elif leader == NOBODY or state.changes < self.bounds.changes:
                yield leader, self._elect(state, leader, isr, is_cut_off=True)

    def _unfence(self, state: State, index: int) -> Iterator[tuple[str, State]]:
        entry = state.metadata[-1]
        after = state._replace(fenced=(*state.fenced[:index], False, *state.fenced[index + 1 :]))
        if entry.leader == NOBODY and index in entry.isr:
            if state.changes >= self.bounds.changes:
                return
            if entry.kept == index:
                leads_on = entry._replace(leader=index, is_cut_off=False, kept=NOBODY)
                after = _entered(after._replace(changes=after.changes + 1), leads_on)
            else:
                after = self._elect(after, index, entry.isr)
        yield f"the controller unfences {index}", after

    def _elect(self, state: State, leader: int, isr: tuple[int, ...], is_cut_off: bool = False) -> State:
        entry = state.metadata[-1]
        is_cut_off = is_cut_off or (entry.leader == NOBODY and entry.is_cut_off)
        changes = state.changes + (leader != NOBODY)
        return _entered(state._replace(changes=changes), Entry(leader, entry.epoch + 1, 0, isr, is_cut_off))

    def _elect_unclean(self, state: State, index: int) -> State:
        entry = state.metadata[-1]
        after = _entered(state, Entry(index, entry.epoch + 1, 0, (index,), entry.is_cut_off, True))
        return _excuse(after, state.brokers[index].log)._replace(unclean=state.unclean + 1)

    def _alter(self, state: State, request: Request) -> Iterator[tuple[str, State]]:
        entry = state.metadata[-1]
        isr = tuple(member for member, _ in request.members)
        is_current = request.epoch == entry.epoch and (entry.leader, entry.kept) != (NOBODY, NOBODY)
        if request.partition_epoch != entry.partition_epoch and "compare-and-set" in self.rules:
            is_current = False
        may = all(
            not state.fenced[member] and incarnation == state.registered[member]
            for member, incarnation in request.members
        )
        if is_current and may and state.alters < self.bounds.alters:
            after = _entered(state, entry._replace(isr=isr), is_altered=True)
            yield f"the controller takes ISR {isr}", after._replace(alters=state.alters + 1)
        if (is_current and not may) or self.bounds.deposed:
            yield f"ISR {isr} is refused", self._refused(state, request)
        if self.bounds.deposed and "committed-first" not in self.rules:
            for index, broker in enumerate(state.brokers):
                if self._leads(state, index) and broker.asked == isr:
                    after = changed_in(state, index, asked=(), believed=isr, is_repeated=False)
                    yield f"a deposed controller says that the ISR is {isr}", after

    def _refused(self, state: State, request: Request) -> State:
        """INELIGIBLE_REPLICA; of a request that was repeated another copy is still on its way."""
        if not request.is_repeated:
            state = state._replace(requests=tuple(each for each in state.requests if each != request))
        isr = tuple(member for member, _ in request.members)
        for index, broker in enumerate(state.brokers):
            if not self._leads(state, index) or broker.asked != isr:
                continue
            entry = state.metadata[broker.read]
            if (entry.epoch, entry.partition_epoch) != (request.epoch, request.partition_epoch):
                continue
            kept = broker.kept
            if broker.is_repeated and "repeats-stay" in self.rules:
                kept = tuple(sorted({*kept, *isr}))
            state = changed_in(state, index, asked=(), is_repeated=False, kept=kept)
        return state

    # ---- reading the metadata

    def _read(self, state: State, index: int) -> State:
        broker = state.brokers[index]
        return self._follow(changed_in(state, index, read=broker.read + 1), index, state.metadata[broker.read])

    def _follow(self, state: State, index: int, before: Entry) -> State:
        """What a broker does by the entry that it has read."""
        broker = state.brokers[index]
        entry = state.metadata[broker.read]
        kept: tuple[int, ...] = ()
        if entry[1:3] == before[1:3] and "proposals-outlive-fencing" in self.rules:
            kept = tuple(sorted({*broker.kept, *broker.asked}))
        if entry.leader != index:
            keep = broker.ends if "forget-ends" not in self.rules else ()
            return changed_in(state, index, start=-1, ends=keep, asked=(), is_repeated=False, kept=kept, believed=())
        if broker.start >= 0 and entry.epoch == before.epoch:
            if entry.partition_epoch != before.partition_epoch:
                state = changed_in(state, index, asked=(), is_repeated=False, kept=(), believed=())
            return state
        ends = broker.ends or self._no_ends()
        if "forget-ends" in self.rules:
            ends = self._no_ends()
        after = changed_in(
            state, index, start=len(broker.log), ends=ends, asked=(), is_repeated=False, kept=kept, believed=()
        )
        earlier = sum(1 for epoch in state.shown_in if epoch < entry.epoch)
        if broker.log[:earlier] != state.shown[:earlier] and not (entry.epoch < state.excused):
            after = after._replace(wrong="a leader begins without what was acknowledged")
        return after

    # ---- faults

    def _fail(self, state: State, index: int) -> Iterator[tuple[str, State]]:
        broker = state.brokers[index]
        if not broker.is_up:
            yield from self._register(state, index)
            return
        if state.restarts < self.bounds.restarts:
            for kept in range(broker.synced if self.bounds.stable else 0, len(broker.log) + 1):
                for watermark in sorted({0, min(kept, broker.watermark)}):
                    after = self._begun_anew(state, index, kept, watermark)
                    what = f"{index} restarts with {kept} of {len(broker.log)} records, watermark {watermark}"
                    yield what, after._replace(restarts=state.restarts + 1)
        if state.wipes < self.bounds.wipes:
            after = changed_in(self._begun_anew(state, index, 0, 0), index, is_wiped=True)
            yield f"{index} comes back with an empty disk", after._replace(wipes=state.wipes + 1)

    def _begun_anew(self, state: State, index: int, kept: int, watermark: int) -> State:
        broker = state.brokers[index]
        after = Broker(False, False, broker.incarnation, broker.read, broker.log[:kept], kept, watermark)
        state = put(state, index, after)
        if "own-registration" not in self.rules:
            state = changed_in(state, index, is_up=True)
            return self._follow(state, index, state.metadata[broker.read])
        return state

    def _register(self, state: State, index: int) -> Iterator[tuple[str, State]]:
        broker = state.brokers[index]
        before = state.metadata[-1]
        incarnation = broker.incarnation + 1
        registered = (*state.registered[:index], incarnation, *state.registered[index + 1 :])
        state = state._replace(registered=registered)
        if "restart-ends-epoch" not in self.rules:
            outcomes = [(before.leader, _entered(state, before))]
        else:
            is_lost = broker.is_wiped and "lost-disk" in self.rules
            outcomes = list(self._fence(state, index, is_lost, begins_anew=True))
        for leader, after in outcomes:
            after = changed_in(
                after, index, is_up=True, is_wiped=False, incarnation=incarnation, read=len(after.metadata) - 1
            )
            is_last = before.isr == (index,)
            if is_last and not self.bounds.stable and not broker.is_wiped:
                after = _excuse(after, broker.log)
            yield f"{index} registers again; {leader} leads", self._follow(after, index, before)

    # ---- names

    def canonical(self, state: State) -> State:
        """The same state with the brokers in the one order that stands for all."""
        keys = [nameless(state, index) for index in range(self.count)]
        return min(renamed(state, order) for order in orders(keys))


def _excuse(state: State, log: Log) -> State:
    """What others had is given up: it goes on with this log."""
    shown = state.shown
    both = 0
    while both < min(len(shown), len(log)) and shown[both] == log[both]:
        both += 1
    return state._replace(shown=shown[:both], shown_in=state.shown_in[:both], excused=state.metadata[-1].epoch)


def _entered(state: State, entry: Entry, is_altered: bool = False) -> State:
    before = state.metadata[-1]
    moved = is_altered or entry.epoch != before.epoch or entry.isr != before.isr
    partition_epoch = before.partition_epoch + moved
    return state._replace(metadata=(*state.metadata, entry._replace(partition_epoch=partition_epoch)))


def _asking(state: State, request: Request) -> State:
    return state._replace(requests=tuple(sorted({*state.requests, request})))
