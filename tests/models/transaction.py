"""Transactions as a model: the real machine, two partitions, two producers of one transactional id, and a network.

What the coordinator decides is decided by `TransactionMachine` itself; partitions, producers and what is on its way are
drawn here. A decision and its commit are one step: before the commit nobody hears of it, so that one that a crash takes
is a request that was lost; one that the log refuses changes soft state alone, which is a step of its own.

Everything that was ever sent may arrive at any time, again and again (`is_late`): loss, repetition and reordering in
one. With the first generation that cannot be endured (KAFKA-17754): there a request arrives before its sender goes on,
or never, and what comes late are markers of a coordinator that was replaced, the partitions' answers to markers, and
batches that wait for the coordinator's word.

Each of a producer's transactions is a token: records, requests and markers have it, unseen by what decides, and by it
the model knows what belongs together. Epochs, decisions and guards are what the code has instead.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from tests.models.coordinator import ID, Known, answer_to, first_known, reloaded

from duramen.errors import ErrorCode, KafkaError
from duramen.machines.contract import ProducerEpoch
from duramen.machines.transaction import (
    AbortTransaction,
    AddPartitions,
    EndTransaction,
    InitProducer,
    MarkersWritten,
    VerifyPartitions,
    WriteMarkers,
)
from duramen.machines.transaction.transitions import ONGOING
from duramen.model import TopicPartition

PLACES: Final = (TopicPartition("t", 0), TopicPartition("t", 1))

RULES: Final = {
    "epoch-rises": "with each transaction of the second generation the epoch rises",
    "markers-above": "a marker of the second generation ends only what was written with a lower epoch",
    "guards": "a marker takes back the coordinator's word for batches that have not come yet",
    "coordinator-epoch": "a partition takes no marker of a coordinator that was replaced",
    "all-markers": "a transaction is complete when the last of its partitions has its marker",
    "markers-first": "nothing is added while markers are on their way",
    "this-decision": "word of markers completes the decision that they are of, and no later one",
    "new-life": "who sends no epoch takes the answer away from who sent the one before",
    "own-epoch": "an older life does not end the transaction that is open",
    "raised-by-endtxn": "only who raised the epoch by its EndTxn is told again how that ended",
}


class Bounds(NamedTuple):
    """How much happens. generations: of the two producers; transactions: of both together; wide: partitions of each."""

    generations: tuple[int, int] = (2, 2)
    transactions: int = 2
    places: int = 2
    failovers: int = 0
    time_outs: int = 0
    resumes: int = 0
    lives: int = 1
    refusals: int = 0
    first_epoch: int = 0


class Token(NamedTuple):
    """One transaction of one producer."""

    client: int
    number: int


class Write(NamedTuple):
    kind: str
    producer: ProducerEpoch
    token: Token
    place: int


class Word(NamedTuple):
    """The coordinator's: this batch may begin a transaction there. serial: of the guard that it is for."""

    kind: str
    producer: ProducerEpoch
    token: Token
    place: int
    serial: int


class End(NamedTuple):
    kind: str
    producer: ProducerEpoch
    token: Token
    commit: bool


class Marker(NamedTuple):
    kind: str
    producer: ProducerEpoch
    tokens: frozenset[Token]
    place: int
    commit: bool
    version: int
    coordinator_epoch: int
    decided_ms: int


class Done(NamedTuple):
    """A partition's answer to a marker, for the coordinator that sent it."""

    kind: str
    producer: ProducerEpoch
    place: int
    decided_ms: int
    coordinator_epoch: int


class Entry(NamedTuple):
    """What a partition knows of one producer id. open: whose records wait for a marker; seen: whose are there."""

    id: int
    epoch: int = -1
    open: frozenset[Token] = frozenset()
    seen: frozenset[Token] = frozenset()
    coordinator_epoch: int = 0
    serial: int = 0
    """Of the guards that are valid: those that were given since the last marker."""


class Client(NamedTuple):
    """phase: "new" before InitProducerId, "idle", "open", "commits", "aborts", "over"."""

    phase: str = "new"
    producer: ProducerEpoch = ProducerEpoch(-1, -1)
    number: int = 0
    sent: frozenset[int] = frozenset()
    acknowledged: frozenset[int] = frozenset()


class State(NamedTuple):
    known: Known
    clients: tuple[Client, ...]
    places: tuple[tuple[Entry, ...], ...]
    sent: frozenset[Any] = frozenset()
    tokens: frozenset[Token] = frozenset()
    """Of the transaction that is open or prepared at the coordinator."""
    ended: frozenset[tuple[Token, bool]] = frozenset()
    """How each was decided."""
    alive: int = 0
    """Whose InitProducerId was answered last."""
    coordinator_epoch: int = 1
    begun: int = 0
    time_outs: int = 0
    resumes: int = 0
    lives: int = 0
    refusals: int = 0
    wrong: str = ""


class Transactions:
    """The steps of all of them. without: a rule of RULES that does not hold."""

    def __init__(self, bounds: Bounds, without: str = "") -> None:
        self.bounds = bounds
        self.without = without
        self.rules = frozenset(RULES) - {without}
        self.is_late = bounds.generations == (2, 2)

    def first(self) -> State:
        """The first producer has the id, the second one is another life of it."""
        known = first_known(self.bounds.first_epoch)
        assert known.transaction is not None
        first = Client("idle", known.transaction.producer)
        return State(known, (first, Client()), ((),) * self.bounds.places)

    @staticmethod
    def canonical(state: State) -> State:
        return state

    @staticmethod
    def violation(state: State) -> str | None:
        return state.wrong or None

    def version(self, client: int) -> int:
        """Of this producer's requests."""
        return self.bounds.generations[client] if "epoch-rises" in self.rules else 0

    # ---- steps

    def steps(self, state: State) -> Iterator[tuple[str, State]]:
        for what, after in self._steps(state):
            if self.without or after.wrong:
                yield what, after
            else:
                # What can do nothing any more need not be told apart.
                left = frozenset(message for message in after.sent if not _is_spent(after, message))
                yield what, after._replace(sent=left)

    def _steps(self, state: State) -> Iterator[tuple[str, State]]:
        for index, client in enumerate(state.clients):
            yield from self._act(state, index, client)
        for message in sorted(state.sent, key=repr):
            yield from self._arrive(state, message)
        transaction = state.known.transaction
        assert transaction is not None
        if state.coordinator_epoch <= self.bounds.failovers:
            yield "another coordinator takes over", self._fail_over(state)
        if state.time_outs < self.bounds.time_outs and transaction.state is ONGOING:
            after = state._replace(time_outs=state.time_outs + 1)
            yield "a time-out", self._decide(after, AbortTransaction(ID, transaction.producer, "time-out"))[0]

    def _act(self, state: State, index: int, client: Client) -> Iterator[tuple[str, State]]:
        """What a producer does next, of itself."""
        if client.phase in ("new", "over") and state.lives < self.bounds.lives and index == 1:
            yield from self._init(state, index, ProducerEpoch(-1, -1))
        if client.phase in ("idle", "open") and state.resumes < self.bounds.resumes:
            yield from self._init(state._replace(resumes=state.resumes + 1), index, client.producer)
        if client.phase == "idle" and state.begun < self.bounds.transactions:
            begun = client._replace(phase="open", sent=frozenset(), acknowledged=frozenset())
            after = _with_client(state, index, begun)._replace(begun=state.begun + 1)
            for place in range(self.bounds.places):
                yield from self._write(after, index, begun, place)
        elif client.phase == "open":
            for place in range(self.bounds.places):
                # One order of two partitions is as good as the other.
                if place not in client.sent and place > max(client.sent, default=-1):
                    yield from self._write(state, index, client, place)
            token = Token(index, client.number)
            for commit in (True, False):
                if commit and client.acknowledged != client.sent:
                    continue
                end = End("end", client.producer, token, commit)
                ending = client._replace(phase="commits" if commit else "aborts")
                after = _with_client(state, index, ending)
                sent = after.sent
                if not self.is_late:
                    # What has not arrived by now never will.
                    sent = frozenset(each for each in sent if not isinstance(each, Write) or each.token != token)
                yield f"{index} sends {_told(end)}", after._replace(sent=sent | {end})

    def _init(self, state: State, index: int, sent: ProducerEpoch) -> Iterator[tuple[str, State]]:
        known, transaction = state.known, state.known.transaction
        assert transaction is not None
        is_old = sent.id != -1 and sent != transaction.producer
        command = InitProducer(ID, 1000, sent.id, sent.epoch)
        if "own-epoch" not in self.rules and is_old and transaction.state is ONGOING:
            command = InitProducer(ID, 1000, transaction.producer.id, transaction.producer.epoch)
        after, answer = self._decide(state, command)
        if is_old and transaction.state is ONGOING and after.known != known:
            after = after._replace(wrong="an older life has ended the transaction that is open")
        told = f"{index} asks for a producer, with {tuple(sent)}: {_told(answer)}"
        if isinstance(answer, ProducerEpoch):
            after = after._replace(alive=index, lives=state.lives + (sent.id == -1))
            yield f"{told}, and does not hear it", after
            fresh = Client("idle", answer, state.clients[index].number + 1)
            yield told, _given(after, index, fresh)
        elif after != state:
            yield told, after
        if state.refusals < self.bounds.refusals:
            _, refused, _, _ = answer_to(known, command, self.without)
            yield f"{told}, but the log refuses it", state._replace(known=refused, refusals=state.refusals + 1)

    def _write(self, state: State, index: int, client: Client, place: int) -> Iterator[tuple[str, State]]:
        token = Token(index, client.number)
        after = _with_client(state, index, client._replace(sent=client.sent | {place}))
        if self.version(index) < 2 and self.bounds.generations[index] < 2:
            after, answer = self._add(after, client.producer, token, place, 0)
            if isinstance(answer, KafkaError):
                yield f"{index} may not add {place}: {_told(answer)}", _with_client(state, index, _ended(client))
                return
        write = Write("write", client.producer, token, place)
        yield f"{index} writes {_told(token)} to {place}", after._replace(sent=after.sent | {write})

    # ---- the network

    def _arrive(self, state: State, message: Any) -> Iterator[tuple[str, State]]:
        if not self.is_late and not (isinstance(message, (Done, Marker))):
            state = state._replace(sent=state.sent - {message})
        if isinstance(message, Write):
            yield from self._arrive_write(state, message)
        elif isinstance(message, Word):
            after = self._append(state, message, message.serial)
            yield f"{message.place} hears that {_told(message.token)} may write", after
        elif isinstance(message, End):
            yield from self._arrive_end(state, message)
        elif isinstance(message, Marker):
            yield from self._arrive_marker(state, message)
        else:
            after = self._hear_done(state, message)
            yield f"the coordinator hears that {message.place} has its marker", after

    def _arrive_write(self, state: State, write: Write) -> Iterator[tuple[str, State]]:
        entry = _entry(state, write.place, write.producer.id)
        if entry.epoch > write.producer.epoch or write.token in entry.seen:
            return
        if entry.open and entry.epoch == write.producer.epoch:
            yield f"{write.place} takes {_told(write.token)} at once", self._append(state, write, entry.serial)
            return
        if self.bounds.generations[write.token.client] < 2:
            _, _, answer, _ = answer_to(
                state.known, VerifyPartitions(ID, write.producer, (PLACES[write.place],)), self.without
            )
            is_in = isinstance(answer, dict) and answer[PLACES[write.place]] is ErrorCode.NONE
            after, answer = state, None if is_in else answer
        else:
            after, answer = self._add(state, write.producer, write.token, write.place, 2)
        if answer is None:
            word = Word("word", write.producer, write.token, write.place, entry.serial)
            yield f"{write.place} asks for {_told(write.token)}", after._replace(sent=after.sent | {word})
        elif _is_fatal(answer):
            client = state.clients[write.token.client]
            if client.producer == write.producer and client.phase in ("open", "idle"):
                told = f"{write.place} refuses {_told(write.token)}: {_told(answer)}"
                yield told, _with_client(after, write.token.client, _ended(client))

    def _append(self, state: State, write: Write | Word, serial: int) -> State:
        """The batch is appended, if its guard is valid still."""
        entry = _entry(state, write.place, write.producer.id)
        token = write.token
        if token in entry.seen or entry.epoch > write.producer.epoch:
            return state
        if entry.serial != serial:
            return state
        if token.client != state.alive:
            return state._replace(wrong="a batch of an older life is appended")
        if token not in state.tokens:
            over = any(ended == token for ended, _ in state.ended)
            what = "a batch of a transaction that is over" if over else "a batch that no marker will end"
            return state._replace(wrong=f"{what} is appended")
        entry = entry._replace(
            epoch=write.producer.epoch,
            open=entry.open | {token},
            seen=entry.seen | {token},
        )
        client = state.clients[token.client]
        if client.number == token.number and client.phase == "open":
            client = client._replace(acknowledged=client.acknowledged | {write.place})
        return _with_client(_with_entry(state, write.place, entry), token.client, client)

    def _arrive_end(self, state: State, end: End) -> Iterator[tuple[str, State]]:
        index = end.token.client
        version = self.version(index)
        after, answer = self._decide(state, EndTransaction(ID, end.producer, end.commit, version), end.token)
        told = f"{_told(end)} arrives: {_told(answer)}"
        client = state.clients[index]
        waits = client.number == end.token.number and client.phase == ("commits" if end.commit else "aborts")
        if isinstance(answer, KafkaError):
            if waits and _is_fatal(answer):
                yield told, _with_client(after, index, _ended(client))
            elif not self.is_late and waits:
                yield told, after._replace(sent=after.sent | {end})
            elif after != state:
                yield told, after
            return
        if not self.is_late:
            yield f"{told}, unheard", after._replace(sent=after.sent | {end})
        elif after != state:
            yield f"{told}, unheard", after
        if waits:
            if (end.token, not end.commit) in after.ended and end.commit:
                after = after._replace(wrong="told that it is committed, and it is not")
            producer = answer if version >= 2 else client.producer
            yield told, _given(after, index, Client("idle", producer, client.number + 1))

    def _arrive_marker(self, state: State, marker: Marker) -> Iterator[tuple[str, State]]:
        entry = _entry(state, marker.place, marker.producer.id)
        if marker.coordinator_epoch < entry.coordinator_epoch and "coordinator-epoch" in self.rules:
            return
        done = Done("done", marker.producer, marker.place, marker.decided_ms, marker.coordinator_epoch)
        is_later = entry.epoch > marker.producer.epoch
        if marker.version >= 2 and "markers-above" in self.rules:
            is_later |= entry.epoch == marker.producer.epoch and bool(entry.open)
        after = state if is_later else self._mark(state, marker, entry)
        after = after._replace(sent=after.sent | {done})
        if not self.is_late:
            after = after._replace(sent=after.sent - {marker})
        if after != state:
            yield f"{marker.place} {'needs no' if is_later else 'takes the'} {_told(marker)}", after
        if not self.is_late and marker.coordinator_epoch < state.coordinator_epoch:
            yield f"an old {_told(marker)} is lost", state._replace(sent=state.sent - {marker})

    def _mark(self, state: State, marker: Marker, entry: Entry) -> State:
        for token in entry.open:
            if token not in marker.tokens:
                return state._replace(wrong="a marker ends a transaction that it is not of")
            if (token, marker.commit) not in state.ended:
                return state._replace(wrong="a marker says what was not decided")
        is_own = marker.version >= 2 and entry.epoch == marker.producer.epoch
        serial = entry.serial if is_own or "guards" not in self.rules else entry.serial + 1
        entry = entry._replace(
            epoch=marker.producer.epoch,
            open=frozenset(),
            coordinator_epoch=marker.coordinator_epoch,
            serial=serial,
        )
        return _with_entry(state, marker.place, entry)

    def _hear_done(self, state: State, done: Done) -> State:
        if done.coordinator_epoch != state.coordinator_epoch:
            return state
        command = MarkersWritten(ID, done.producer, (PLACES[done.place],), done.decided_ms)
        return self._decide(state, command)[0]

    # ---- the coordinator

    def _add(self, state: State, producer: ProducerEpoch, token: Token, place: int, version: int) -> tuple[State, Any]:
        transaction = state.known.transaction
        assert transaction is not None
        if "markers-first" not in self.rules and transaction.is_prepared:
            state = state._replace(known=Known(transaction.completed(0), None, None), tokens=frozenset())
        before = state.known.transaction
        after, answer = self._decide(state, AddPartitions(ID, producer, (PLACES[place],), version))
        if answer is None:
            is_open = before is not None and before.state is ONGOING
            after = after._replace(tokens=(state.tokens if is_open else frozenset()) | {token})
        return after, answer

    def _decide(self, state: State, command: Any, token: Token | None = None) -> tuple[State, Any]:
        """What the machine makes of it, and what is to be said of that. token: whose EndTxn this is."""
        before = state.known.transaction
        known, _, answer, effects = answer_to(state.known, command, self.without)
        after = known.transaction
        assert before is not None
        assert after is not None
        wrong, tokens, ended = state.wrong, state.tokens, state.ended
        if before.state is ONGOING and after.state is not ONGOING:
            commit = after.state.title.endswith("Commit")
            if token is not None and tokens != {token}:
                wrong = "an EndTxn ends another transaction than its own"
            if commit and token is not None and token.client != state.alive:
                wrong = "an older life commits"
            ended |= {(each, commit) for each in tokens}
        elif token is not None and after != before:
            ended |= {(token, False)}
        sent = state.sent
        for effect in effects:
            sent |= self._markers(effect, tokens, state.coordinator_epoch)
        if (before.is_prepared or before.state is ONGOING) and after.is_idle:
            if any(entry.open & tokens for place in state.places for entry in place):
                wrong = "complete, and a partition still waits for its marker"
            tokens = frozenset()
            if not self.is_late:
                sent = frozenset(each for each in sent if not isinstance(each, Marker) or self._is_old(state, each))
        state = state._replace(known=known, wrong=wrong, tokens=tokens, ended=ended, sent=sent)
        return state, answer

    @staticmethod
    def _is_old(state: State, marker: Marker) -> bool:
        return marker.coordinator_epoch < state.coordinator_epoch

    @staticmethod
    def _markers(effect: WriteMarkers, tokens: frozenset[Token], epoch: int) -> frozenset[Any]:
        version, decided_ms = effect.transaction_version, effect.decided_ms
        return frozenset(
            Marker("marker", effect.producer, tokens, PLACES.index(place), effect.commit, version, epoch, decided_ms)
            for place in effect.partitions
        )

    def _fail_over(self, state: State) -> State:
        known, effects = reloaded(state.known)
        epoch = state.coordinator_epoch + 1
        sent = state.sent
        for effect in effects:
            sent |= self._markers(effect, state.tokens, epoch)
        return state._replace(known=known, coordinator_epoch=epoch, sent=sent)


def _is_spent(state: State, message: Any) -> bool:
    """Whether it changes nothing, whenever it comes: epochs, serials and decisions never come again."""
    transaction = state.known.transaction
    assert transaction is not None
    if isinstance(message, End):
        client = state.clients[message.token.client]
        is_awaited = client.number == message.token.number and client.phase in ("commits", "aborts")
        known = transaction.producer
        return not is_awaited and known.id == message.producer.id and known.epoch > message.producer.epoch
    is_over = isinstance(message, (Marker, Done)) and (
        not transaction.is_prepared or transaction.updated_ms != message.decided_ms
    )
    if isinstance(message, Done):
        return is_over or message.coordinator_epoch != state.coordinator_epoch
    entry = _entry(state, message.place, message.producer.id)
    if isinstance(message, Marker):
        return is_over and entry.epoch > message.producer.epoch
    is_late = entry.epoch > message.producer.epoch or message.token in entry.seen
    return is_late or (isinstance(message, Word) and message.serial != entry.serial)


def _entry(state: State, place: int, producer_id: int) -> Entry:
    return next((entry for entry in state.places[place] if entry.id == producer_id), Entry(producer_id))


def _with_entry(state: State, place: int, entry: Entry) -> State:
    others = [each for each in state.places[place] if each.id != entry.id]
    entries = tuple(sorted((*others, entry), key=lambda each: each.id))
    return state._replace(places=(*state.places[:place], entries, *state.places[place + 1 :]))


def _with_client(state: State, index: int, client: Client) -> State:
    return state._replace(clients=(*state.clients[:index], client, *state.clients[index + 1 :]))


def _given(state: State, index: int, client: Client) -> State:
    """The producer goes on with what it was given."""
    if any(each.producer == client.producer and other != index for other, each in enumerate(state.clients)):
        state = state._replace(wrong="two producers have one epoch")
    return _with_client(state, index, client)


def _ended(client: Client) -> Client:
    """A producer that was told that it is fenced, or has to begin anew."""
    return Client("over", client.producer, client.number)


def _is_fatal(answer: Any) -> bool:
    return isinstance(answer, KafkaError) and answer.code is not ErrorCode.CONCURRENT_TRANSACTIONS


def _told(what: Any) -> str:
    if isinstance(what, KafkaError):
        return what.code.name
    if isinstance(what, Token):
        return f"transaction {what.client}.{what.number}"
    if isinstance(what, End):
        return f"the {'commit' if what.commit else 'abort'} of {_told(what.token)} (epoch {what.producer.epoch})"
    if isinstance(what, Marker):
        return f"marker of epoch {what.producer.epoch}, {'commit' if what.commit else 'abort'}"
    return str(tuple(what)) if isinstance(what, tuple) else str(what)
