"""What a state machine behind a log is: commands in, records, replies and timers out; durable state only in `apply`.

The contract is state machine replication: `decide` looks at the state and says what should happen, `apply` makes one
committed-to-be record part of the state, and replaying the same records on a fresh machine gives the same durable
state. Machines are pure: time is an argument (milliseconds since 1970), identities come in with the commands.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

NO_TICKET = 0
"""The ticket of a command that nobody waits for (timers, follow-ups); answers to it are dropped."""


class LogRecord(NamedTuple):
    """A record as a machine writes and reads it; a None value is a tombstone."""

    key: bytes | None
    value: bytes | None


class ProducerEpoch(NamedTuple):
    """A transactional producer as its batches and markers name it."""

    id: int
    epoch: int


@dataclass(slots=True)
class Outcome:
    """What a decision asks of its host.

    records: appended together, all or nothing, then applied at once.
    producer: the records belong to its open transaction; they are one batch, and whether they count says its marker.
    replies: (ticket, answer) pairs; an answer may be a KafkaError. They leave only when everything the decision saw
        is committed, unless `immediate`.
    timers: (key, due) pairs; due is in milliseconds since 1970, None cancels. A key has one timer; it fires as the
        command TimerFired(key).
    immediate: the replies say nothing about durable state (heartbeats) and need not wait.
    effects: work outside of this log, plain values, carried out in order once everything the decision saw is committed,
        and never where the records were refused. What comes of it is a command, or `Host.resume` for the ticket that
        the effect names. A crash may take an effect: the machine asks again by what it has recorded (`on_loaded`).
    if_refused: a command the host decides next when the records could not be appended, so that the machine can take
        back soft state that assumed them.
    """

    records: list[LogRecord] = field(default_factory=list)
    replies: list[tuple[int, Any]] = field(default_factory=list)
    timers: list[tuple[Hashable, int | None]] = field(default_factory=list)
    immediate: bool = False
    effects: list[Any] = field(default_factory=list)
    producer: ProducerEpoch | None = None
    if_refused: Any = None


class TimerFired(NamedTuple):
    """The timer `key` is due."""

    key: Hashable


class TransactionMarks(NamedTuple):
    """Records around an Outcome too large for one batch (KIP-868); between begin and end nothing takes effect."""

    begin: LogRecord
    end: LogRecord
    abort: LogRecord


class Machine(Protocol):
    """A deterministic state machine; every method runs on the loop thread."""

    transaction_marks: TransactionMarks | None
    """How to split an Outcome over several batches; None when an Outcome must fit one."""

    def decide(self, command: Any, ticket: int, now: int) -> Outcome:
        """Judge a command. A refusal is an answer, not an exception; KafkaError raised here answers the ticket."""

    def apply(self, record: LogRecord, offset: int, timestamp: int, producer: ProducerEpoch | None = None) -> None:
        """Make one record part of the durable state; called in log order, live and at replay alike.

        producer: whose transaction the record is part of. Until its marker says so, such a record is not state.
        """

    def apply_control(self, record: LogRecord, offset: int, producer: ProducerEpoch | None = None) -> None:
        """See a control record of the log, at replay or as it is written; producer: whose transaction it ends."""

    def on_loaded(self, now: int) -> Outcome:
        """Called once after the replay: restarts timers, may write records, asks for the effects that are still due."""
