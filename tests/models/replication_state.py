"""What the model of replication consists of: brokers, messages, the metadata log; and what of it has no effect."""

from __future__ import annotations

from typing import Final, NamedTuple

from tests.models.replica_log import Log

NOBODY: Final = -1


class Entry(NamedTuple):
    """What the metadata log says of the partition from here on."""

    leader: int
    epoch: int
    partition_epoch: int
    isr: tuple[int, ...]
    is_cut_off: bool = False
    """The leader before was fenced: it may not have heard."""
    is_unclean: bool = False
    kept: int = NOBODY
    """Who leads this epoch on when it is unfenced: nobody else can."""


class Broker(NamedTuple):
    """One broker, and its replica. `read`: how far it has read the metadata log."""

    is_up: bool = True
    """False: its process began anew, and has not registered."""
    is_wiped: bool = False
    incarnation: int = 0
    read: int = 0
    log: Log = ()
    synced: int = 0
    watermark: int = 0
    start: int = -1
    """Of a leader: where its epoch begins."""
    ends: tuple[tuple[int, int], ...] = ()
    """Of a leader: (incarnation, end) of each broker, as its Fetch said."""
    asked: tuple[int, ...] = ()
    """Of a leader: the ISR that it asked for, and has no answer."""
    is_repeated: bool = False
    kept: tuple[int, ...] = ()
    """Of a leader: who may yet be taken in by an earlier request."""
    believed: tuple[int, ...] = ()
    """Of a leader: an ISR that it was told and that is not committed."""


class Request(NamedTuple):
    """AlterPartition, on its way. members: (broker, incarnation)."""

    epoch: int
    partition_epoch: int
    members: tuple[tuple[int, int], ...]
    is_repeated: bool = False


class Fetch(NamedTuple):
    """A follower's request, again or late."""

    kind: int
    epoch: int
    leader: int
    follower: int
    incarnation: int
    end: int
    last: int


class Answer(NamedTuple):
    """A leader's answer, again or late: what lies behind `end`; cut: (epoch, end) where histories part, or ()."""

    kind: int
    epoch: int
    follower: int
    end: int
    last: int
    records: Log
    cut: tuple[int, ...]
    watermark: int


class State(NamedTuple):
    brokers: tuple[Broker, ...]
    metadata: tuple[Entry, ...]
    fenced: tuple[bool, ...]
    must_read: tuple[int, ...]
    """The entry that each was fenced by."""
    registered: tuple[int, ...]
    """The incarnation that the controller knows of each."""
    requests: tuple[Request, ...] = ()
    late: tuple[Fetch | Answer, ...] = ()
    shown: Log = ()
    """Below the watermark of some leader: acknowledged, and read."""
    shown_in: tuple[int, ...] = ()
    """The epoch in which each of them was shown."""
    appended: tuple[int, ...] = ()
    """How many records were appended in each epoch."""
    changes: int = 0
    alters: int = 0
    fences: int = 0
    restarts: int = 0
    wipes: int = 0
    unclean: int = 0
    excused: int = 0
    """Leaders of earlier epochs may have shown what a lost disk or an unclean election took."""
    wrong: str = ""


def put(state: State, index: int, broker: Broker) -> State:
    brokers = state.brokers
    return State((*brokers[:index], broker, *brokers[index + 1 :]), *state[1:])


def changed_in(state: State, index: int, **changed: object) -> State:
    return put(state, index, state.brokers[index]._replace(**changed))  # type: ignore[arg-type]


def forgotten(state: State, is_whole: bool, is_synced: bool, is_compared: bool) -> State:
    """The same state without what has no effect any more.

    is_whole: who is not up does nothing; is_synced: no power cut comes any more; is_compared: a request for an earlier
    partition epoch is not taken.
    """
    metadata = state.metadata
    brokers = list(state.brokers)
    top = len(metadata) - 1
    for index, broker in enumerate(brokers):
        read = broker.read
        if is_whole and not broker.is_up:
            read = top
        while read < top and metadata[read].leader != index and metadata[read + 1][:2] == metadata[read][:2]:
            read += 1  # who does not lead sees no difference
        synced = broker.synced
        if is_synced:
            synced = len(broker.log)
        if read != broker.read or synced != broker.synced:
            brokers[index] = broker._replace(read=read, synced=synced)
    # What nobody has to read any more, or only for its epoch.
    must_read = state.must_read
    if top:
        index_of: dict[int, int] = {}
        entries: list[Entry] = []
        for at in range(min(broker.read for broker in brokers), top + 1):
            entry = metadata[at]
            index_of[at] = len(entries)
            if at < top and (entry.leader == NOBODY or brokers[entry.leader].read > at):
                if metadata[at + 1][:2] == entry[:2]:
                    continue  # the next stands for it
                if entry.isr and metadata[at + 1].epoch != entry.epoch:
                    entry = entry._replace(isr=(), partition_epoch=0)
            entries.append(entry)
        must = [0] * len(brokers)
        for index, broker in enumerate(brokers):
            if state.fenced[index] and broker.read < must_read[index]:
                must[index] = index_of[must_read[index]]
            if broker.read != index_of[broker.read]:
                brokers[index] = broker._replace(read=index_of[broker.read])
        metadata, must_read = tuple(entries), tuple(must)
    requests = state.requests
    if requests:
        last = metadata[-1]
        requests = tuple(
            each
            for each in requests
            if each.epoch == last.epoch and (each.partition_epoch == last.partition_epoch or not is_compared)
        )
    # Partition epochs are compared, never counted.
    known = {entry.partition_epoch for entry in metadata if entry.isr}
    known.update(request.partition_epoch for request in requests)
    if known and max(known) >= len(known):
        rank = {each: number for number, each in enumerate(sorted(known))}
        metadata = tuple(
            entry._replace(partition_epoch=rank[entry.partition_epoch]) if entry.isr else entry for entry in metadata
        )
        requests = tuple(each._replace(partition_epoch=rank[each.partition_epoch]) for each in requests)
    return State(tuple(brokers), metadata, state.fenced, must_read, state.registered, requests, *state[6:])


def nameless(state: State, index: int) -> tuple[object, ...]:
    """What of a broker names no other."""
    broker = state.brokers[index]
    entries = tuple((entry.leader == index, index in entry.isr, entry.kept == index) for entry in state.metadata)
    asked = (index in broker.asked, len(broker.asked), index in broker.kept, len(broker.kept), broker.is_repeated)
    controller = (state.fenced[index], state.must_read[index], state.registered[index])
    return (broker[:8], sorted(broker.ends), asked, controller, entries)


def renamed(state: State, order: list[int]) -> State:
    """The brokers in another order: who was `order[0]` is 0 then."""
    if order == list(range(len(order))):
        return state
    new = {old: index for index, old in enumerate(order)} | {NOBODY: NOBODY}

    def names(members: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(sorted(new[each] for each in members))

    brokers = tuple(
        broker._replace(
            ends=tuple(broker.ends[old] for old in order) if broker.ends else (),
            asked=names(broker.asked),
            kept=names(broker.kept),
            believed=names(broker.believed),
        )
        for broker in (state.brokers[old] for old in order)
    )
    requests = tuple(
        sorted(
            each._replace(members=tuple(sorted((new[member], incarnation) for member, incarnation in each.members)))
            for each in state.requests
        )
    )
    late: list[Fetch | Answer] = []
    for message in state.late:
        if isinstance(message, Fetch):
            late.append(message._replace(leader=new[message.leader], follower=new[message.follower]))
        else:
            late.append(message._replace(follower=new[message.follower]))
    metadata = tuple(
        entry._replace(leader=new[entry.leader], isr=names(entry.isr), kept=new[entry.kept]) for entry in state.metadata
    )
    return state._replace(
        brokers=brokers,
        metadata=metadata,
        fenced=tuple(state.fenced[old] for old in order),
        must_read=tuple(state.must_read[old] for old in order),
        registered=tuple(state.registered[old] for old in order),
        requests=requests,
        late=tuple(sorted(late)),
    )
