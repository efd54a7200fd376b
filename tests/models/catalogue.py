"""Which models are explored, within which bounds, and what takes each of their rules out."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from tests.models import lease, quorum, replication, transaction
from tests.models.explorer import Exploration, explore
from tests.models.lease import Bounds as LeaseBounds
from tests.models.lease import Lease
from tests.models.quorum import Bounds as QuorumBounds
from tests.models.quorum import Quorum
from tests.models.replication import Bounds as ReplicationBounds
from tests.models.replication import Replication
from tests.models.transaction import Bounds as TransactionBounds
from tests.models.transaction import Transactions

FIRST: Final = (0, 0)
"""Both producers are of the first generation; usually they are of the second."""


class Search(NamedTuple):
    """One model within bounds; without: the rule that does not hold."""

    bounds: QuorumBounds | ReplicationBounds | LeaseBounds | TransactionBounds
    without: str = ""

    @property
    def name(self) -> str:
        return type(self.model()).__name__.lower()

    def model(self) -> Any:
        if isinstance(self.bounds, QuorumBounds):
            return Quorum(self.bounds, self.without)
        if isinstance(self.bounds, ReplicationBounds):
            return Replication(self.bounds, self.without)
        if isinstance(self.bounds, TransactionBounds):
            return Transactions(self.bounds, self.without)
        return Lease(self.bounds, self.without)

    def __str__(self) -> str:
        """The bounds that are other than they would be."""
        usual = self.bounds._field_defaults
        return " ".join(f"{name}={value}" for name, value in self.bounds._asdict().items() if value != usual[name])


def run(search: Search) -> Exploration[Any]:
    model = search.model()
    return explore(model.first(), model.steps, model.violation, model.canonical)


RULES: Final = {
    "quorum": quorum.RULES,
    "replication": replication.RULES,
    "lease": lease.RULES,
    "transactions": transaction.RULES,
}

SMALL: Final = [
    Search(QuorumBounds(epochs=2, entries=1)),
    Search(QuorumBounds(epochs=2, entries=0, cuts=1)),
    Search(ReplicationBounds(alters=1)),
    Search(ReplicationBounds(late=1)),
    Search(LeaseBounds(fences=1, elections=1, slips=1)),
    Search(TransactionBounds(transactions=1, time_outs=1, resumes=1)),
    Search(TransactionBounds(generations=FIRST, places=1)),
]
"""What every run of the tests explores."""

LARGE: Final = [
    Search(QuorumBounds(epochs=3, entries=1)),
    Search(QuorumBounds(epochs=4, entries=0)),
    Search(QuorumBounds(epochs=3, entries=0, cuts=1)),
    Search(QuorumBounds(epochs=2, entries=2, cuts=1)),
    Search(QuorumBounds(epochs=2, entries=1, late=1)),
    Search(ReplicationBounds(changes=2, records=3)),
    Search(ReplicationBounds(changes=2, records=2, late=1)),
    Search(ReplicationBounds(changes=2, records=2, alters=1)),
    Search(ReplicationBounds(changes=2, alters=1, repeats=1)),
    Search(ReplicationBounds(brokers=2, changes=2, records=2, alters=1, repeats=1, deposed=1, min_isr=1)),
    Search(ReplicationBounds(brokers=2, alters=2, late=1, repeats=1, deposed=1, min_isr=1)),
    Search(ReplicationBounds(alters=1, restarts=1)),
    Search(ReplicationBounds(alters=1, fences=1, unclean=1, min_isr=1)),
    Search(ReplicationBounds(restarts=1, late=1, stable=False)),
    Search(ReplicationBounds(alters=1, wipes=1)),
    Search(LeaseBounds(fences=2, elections=2, slips=1)),
    Search(LeaseBounds(fences=1, elections=1, slips=1, beats=2)),
    Search(TransactionBounds()),
    Search(TransactionBounds(transactions=3, places=1)),
    Search(TransactionBounds(places=1, failovers=1, time_outs=1)),
    Search(TransactionBounds(places=1, resumes=1, refusals=1)),
    Search(TransactionBounds(places=1, time_outs=1, first_epoch=32765)),
    Search(TransactionBounds(generations=FIRST)),
    Search(TransactionBounds(generations=FIRST, transactions=3, places=1)),
    Search(TransactionBounds(generations=FIRST, places=1, failovers=1, time_outs=1, refusals=1, lives=2)),
    Search(TransactionBounds(generations=(2, 0), places=1, failovers=1)),
    Search(TransactionBounds(generations=(0, 2), places=1, failovers=1)),
]

TAKEN_OUT: Final = [
    Search(QuorumBounds(epochs=1, cuts=1), "vote-synced"),
    Search(QuorumBounds(epochs=1), "one-vote"),
    Search(QuorumBounds(epochs=2), "longest-log"),
    Search(QuorumBounds(epochs=2, cuts=1), "durable-only"),
    Search(QuorumBounds(epochs=4), "own-epoch"),
    Search(QuorumBounds(epochs=2, entries=1, cuts=1), "no-resume"),
    Search(QuorumBounds(epochs=1, wipes=1), "same-disk"),
    Search(QuorumBounds(epochs=2, late=1), "answers-in-place"),
    Search(QuorumBounds(epochs=3, late=1), "answers-to-this-log"),
    Search(QuorumBounds(epochs=3), "histories"),
    Search(ReplicationBounds(restarts=1), "durable-only"),
    Search(ReplicationBounds(alters=1), "maximal-isr"),
    Search(ReplicationBounds(alters=1, min_isr=3), "min-isr"),
    Search(ReplicationBounds(fences=1, unclean=1, min_isr=1, out=2), "alone-by-lease"),
    Search(ReplicationBounds(brokers=2, alters=3, repeats=1, min_isr=1), "compare-and-set"),
    Search(ReplicationBounds(changes=0, alters=1, fences=1, repeats=1, out=1), "repeats-stay"),
    Search(ReplicationBounds(alters=1, fences=1, min_isr=1, out=2), "proposals-outlive-fencing"),
    Search(ReplicationBounds(alters=1, deposed=1), "committed-first"),
    Search(ReplicationBounds(brokers=2, alters=1, restarts=1, stable=False, min_isr=1), "fetched-incarnation"),
    Search(ReplicationBounds(brokers=2, alters=1, restarts=1, stable=False, min_isr=1), "newer-replaces"),
    Search(ReplicationBounds(brokers=2, alters=1, restarts=1, late=1, stable=False, min_isr=1), "older-refused"),
    Search(ReplicationBounds(changes=2), "forget-ends"),
    Search(ReplicationBounds(alters=1, out=1), "join-at-watermark"),
    Search(ReplicationBounds(changes=2, alters=1, out=1), "join-at-start"),
    Search(ReplicationBounds(changes=2), "fetch-epoch"),
    Search(ReplicationBounds(records=2), "compared-first"),
    Search(ReplicationBounds(records=2), "histories"),
    Search(ReplicationBounds(records=2, late=1), "answers-in-place"),
    Search(ReplicationBounds(brokers=2, records=2, late=1, min_isr=1), "answers-to-this-log"),
    Search(ReplicationBounds(fences=1, records=2), "watermark-compared"),
    Search(ReplicationBounds(fences=1, out=1), "in-sync-only"),
    Search(ReplicationBounds(restarts=1, records=2), "restart-ends-epoch"),
    Search(ReplicationBounds(restarts=1, records=2), "own-registration"),
    Search(ReplicationBounds(brokers=2, alters=1, wipes=1, min_isr=1), "lost-disk"),
    Search(ReplicationBounds(fences=1), "unfence-when-read"),
    Search(LeaseBounds(), "from-sending"),
    Search(LeaseBounds(slips=1), "shorter"),
    Search(LeaseBounds(), "looked-at"),
    Search(LeaseBounds(elections=1), "proven"),
    Search(LeaseBounds(elections=1), "full-session"),
    Search(LeaseBounds(), "none-while-fenced"),
    Search(LeaseBounds(), "unfence-when-read"),
    Search(LeaseBounds(resets=1), "dead-at-once"),
    Search(LeaseBounds(), "one-session"),
    Search(TransactionBounds(places=1), "epoch-rises"),
    Search(TransactionBounds(places=1), "markers-above"),
    Search(TransactionBounds(generations=FIRST, places=1), "guards"),
    Search(TransactionBounds(generations=FIRST, places=1, failovers=1), "coordinator-epoch"),
    Search(TransactionBounds(transactions=1), "all-markers"),
    Search(TransactionBounds(generations=FIRST), "markers-first"),
    Search(TransactionBounds(generations=FIRST, places=1), "this-decision"),
    Search(TransactionBounds(transactions=1, resumes=1), "new-life"),
    Search(TransactionBounds(transactions=1, resumes=1), "own-epoch"),
    Search(TransactionBounds(generations=(2, 0), places=1), "raised-by-endtxn"),
]
"""Each within the least bounds that show what it is for; with all rules these hold."""

MODELS: Final = [*LARGE, *TAKEN_OUT]
