"""The states of a transactional id, and how it changes between them.

`TRANSITIONS` is all there is: what happens, in which state, leads to which state. The diagram in the documentation is
drawn from it.
"""

from __future__ import annotations

from enum import Enum, IntEnum
from typing import Final

from duramen.errors import check


class TransactionState(IntEnum):
    """As in the records. Kafka's 6 (Dead) and 7 (PrepareEpochFence) never reach a log, and nothing here needs them."""

    EMPTY = 0
    """The id has a producer, who has begun nothing since."""
    ONGOING = 1
    PREPARE_COMMIT = 2
    """It is decided that the transaction counts; markers are on their way."""
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4
    """Every marker is written."""
    COMPLETE_ABORT = 5

    @property
    def title(self) -> str:
        """The name as Kafka tells it to administrators."""
        return "".join(word.capitalize() for word in self.name.split("_"))


EMPTY: Final = TransactionState.EMPTY
ONGOING: Final = TransactionState.ONGOING
PREPARE_COMMIT: Final = TransactionState.PREPARE_COMMIT
PREPARE_ABORT: Final = TransactionState.PREPARE_ABORT
COMPLETE_COMMIT: Final = TransactionState.COMPLETE_COMMIT
COMPLETE_ABORT: Final = TransactionState.COMPLETE_ABORT

PREPARED: Final = frozenset({PREPARE_COMMIT, PREPARE_ABORT})
IDLE: Final = frozenset({EMPTY, COMPLETE_COMMIT, COMPLETE_ABORT})
"""No transaction is open: the id may be taken over at once, and it may expire."""


class TransactionEvent(Enum):
    INITIALISED = "InitProducerId"
    ADDED = "partitions are added"
    COMMITTED = "EndTxn commits"
    ABORTED = "EndTxn aborts"
    NOTHING_ABORTED = "EndTxn aborts, though nothing is open (second generation)"
    FENCED = "another InitProducerId, or a time-out"
    MARKED = "every marker is written"
    EXPIRED = "the id was not used for long"


_BEGINS: Final = {
    TransactionEvent.INITIALISED: EMPTY,
    TransactionEvent.ADDED: ONGOING,
    TransactionEvent.NOTHING_ABORTED: PREPARE_ABORT,
    TransactionEvent.EXPIRED: None,
}

TRANSITIONS: Final[dict[TransactionState, dict[TransactionEvent, TransactionState | None]]] = {
    EMPTY: _BEGINS,
    ONGOING: {
        TransactionEvent.ADDED: ONGOING,
        TransactionEvent.COMMITTED: PREPARE_COMMIT,
        TransactionEvent.ABORTED: PREPARE_ABORT,
        TransactionEvent.FENCED: PREPARE_ABORT,
    },
    PREPARE_COMMIT: {TransactionEvent.MARKED: COMPLETE_COMMIT},
    PREPARE_ABORT: {TransactionEvent.MARKED: COMPLETE_ABORT},
    COMPLETE_COMMIT: _BEGINS,
    COMPLETE_ABORT: _BEGINS,
}
"""None: the id is gone."""


def state_behind(state: TransactionState, event: TransactionEvent) -> TransactionState:
    """The state that this leads to; a BugError where the table has nothing of it."""
    after = TRANSITIONS[state].get(event)
    check(after is not None, f"a transaction that is {state.title} cannot see that {event.value}")
    assert after is not None
    return after


def diagram() -> str:
    """The table as Mermaid draws it."""
    lines = ["stateDiagram-v2", f"    [*] --> {EMPTY.title}: {TransactionEvent.INITIALISED.value}"]
    for state, row in TRANSITIONS.items():
        for what, after in row.items():
            lines.append(f"    {state.title} --> {'[*]' if after is None else after.title}: {what.value}")
    return "".join(f"{line}\n" for line in lines)
