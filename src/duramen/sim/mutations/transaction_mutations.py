"""Guards of transactions and of groups of both protocols that a simulation can do without for a while."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from duramen.machines.contract import LogRecord, Outcome, ProducerEpoch
from duramen.machines.group import GroupMachine
from duramen.machines.group.consumer import commits, heartbeats, target
from duramen.machines.group.offsets import OffsetTable
from duramen.machines.transaction import TransactionMachine, sweeps
from duramen.partition.replica import transactional_writes
from duramen.partition.replica.partition import Partition
from duramen.server.coordinators.transactions import TransactionCoordinators
from duramen.sim.mutations.mutations import GUARDS, Guard
from duramen.sim.mutations.stream_mutations import STREAM_GUARDS
from duramen.sim.world.plan import KINDS
from duramen.storage.log import log as log_module
from duramen.storage.segment.producer_state import ProducerStates

TRANSACTIONS = KINDS["transactions"].single
GROUPS = KINDS["groups"].single


class OffsetsWithRecords(Guard):
    """A group does not get the positions of a transaction that is committed."""

    owner = OffsetTable
    method = "end_transaction"
    caught_by = "Atomic"
    plan = TRANSACTIONS

    def replacement(self, original: Any) -> Any:
        """As if it were aborted."""
        return lambda table, producer, *, commit: original(table, producer, commit=False)


class AbortedList(Guard):
    """Readers of committed data are not told which transactions were aborted."""

    owner = log_module
    method = "aborted_between"
    caught_by = "AbortedUnseen"
    plan = TRANSACTIONS

    def replacement(self, original: Any) -> Any:
        """None were."""
        return lambda segments, first, last: []


class StableBound(Guard):
    """Readers of committed data are given what is not decided yet."""

    owner = Partition
    method = "last_stable_offset"
    caught_by = "AbortedUnseen"
    plan = TRANSACTIONS

    def replacement(self, original: Any) -> Any:
        """Up to the high watermark."""
        return property(lambda partition: partition.high_watermark)


class OffsetsWait(Guard):
    """A group has the positions of a transaction as soon as they are written."""

    owner = GroupMachine
    method = "apply"
    caught_by = "AbortedUnseen"
    plan = TRANSACTIONS

    def replacement(self, original: Any) -> Any:
        """As if they were in none."""

        def apply(
            machine: GroupMachine, record: LogRecord, offset: int, timestamp: int, producer: ProducerEpoch | None = None
        ) -> None:
            original(machine, record, offset, timestamp)

        return apply


class Verified(Guard):
    """A partition takes batches of transactions that it was not added to, and of those that are over."""

    owner = transactional_writes
    method = "transaction_guard"
    caught_by = "NoLateMarker"
    also = ("StableAdvances", "FencedAnsweredOnce", "AbortedUnseen")
    plan = TRANSACTIONS

    def replacement(self, original: Any) -> Any:
        """Without asking the coordinator."""
        return lambda partition, producer, base_sequence, is_second_generation: None

    def parts(self) -> list[tuple[Any, str, Any]]:
        """Nor by what was said before."""

        def check_guard(producers: ProducerStates, producer_id: int, epoch: int, guard: Any) -> None:
            producers.check_epoch(producer_id, epoch)

        return [*super().parts(), (ProducerStates, "check_guard", check_guard)]


class LivesEpoch(Guard):
    """The coordinator takes any epoch of the producer id, an older life's, too."""

    owner = TransactionMachine
    method = "_check_producer"
    caught_by = "FencedAnsweredOnce"
    also = ("NoLateMarker",)
    plan = TRANSACTIONS

    def replacement(self, original: Any) -> Any:
        """Look at nothing."""
        return staticmethod(lambda transactional_id, sent, transaction: None)


class TimeOuts(Guard):
    """A transaction whose client is gone stays open."""

    owner = TransactionMachine
    method = "_abort_timed_out"
    caught_by = "StableAdvances"
    also = ("Progress",)
    plan = TRANSACTIONS

    def replacement(self, original: Any) -> Any:
        """Look at none."""

        def abort(machine: TransactionMachine, now: int, out: Outcome) -> None:
            out.timers.append((sweeps.TIME_OUTS, now + machine.settings.abort_interval_ms))

        return abort


class JournaledMarkers(Guard):
    """A transaction is over when a marker is in the page cache: a power cut takes it, and nobody writes it again."""

    owner = transactional_writes
    method = "journal_marker"
    caught_by = "StableAdvances"
    also = ("NoLateMarker", "Atomic")
    plan = replace(TRANSACTIONS, faults=("power cut", "power cut in a call"))

    def replacement(self, original: Any) -> Any:
        """Journal nothing."""
        return lambda log, data: 0


class DecisionKept(Guard):
    """A coordinator that loads a decision takes it for carried out: markers that are missing stay away."""

    owner = TransactionMachine
    method = "on_loaded"
    caught_by = "NoLateMarker"
    also = ("StableAdvances", "Atomic", "AbortedUnseen", "Progress")
    plan = replace(
        TRANSACTIONS,
        faults=("end at a moment",),
        moments=("transaction decided",),
        features=(*TRANSACTIONS.features, "two directories"),
    )

    def replacement(self, original: Any) -> Any:
        """As if every marker were written."""

        def on_loaded(machine: TransactionMachine, now: int) -> Outcome:
            for transactional_id in machine.unmarked:
                machine.transactions[transactional_id] = machine.transactions[transactional_id].completed(now)
            machine.unmarked.clear()
            return original(machine, now)  # type: ignore[no-any-return]

        return on_loaded


class EffectsCommitted(Guard):
    """Markers are written before the decision is on stable storage: a power cut takes it, and leaves some of them."""

    owner = TransactionCoordinators
    method = "_keeps_order"
    caught_by = "Atomic"
    also = ("AbortedUnseen", "NoLateMarker", "FencedAnsweredOnce")
    plan = replace(
        TRANSACTIONS,
        faults=("end at a moment",),
        moments=("client died with its EndTxn on the way",),
        features=(*TRANSACTIONS.features, "two directories"),
    )

    def replacement(self, original: Any) -> Any:
        """As if all journals were one."""
        return lambda coordinators, coordinator, effect: True


class FreeFirst(Guard):
    """A member gets a partition that another one still has."""

    owner = heartbeats
    method = "reconcile"
    caught_by = "OneOwner"
    plan = GROUPS

    def replacement(self, original: Any) -> Any:
        """As if nobody had it."""

        def reconcile(member: Any, target: Any, topic_ids: Any, owner: Any, reported: Any, *, has_changed: bool) -> Any:
            free = lambda topic_id, partition: None  # noqa: E731
            moved = original(member, target, topic_ids, free, reported, has_changed=has_changed)
            return moved._replace(epoch=target.epoch)

        return reconcile


class CommitEpochs(Guard):
    """A member commits positions of partitions that it has no more."""

    owner = commits
    method = "check_commit"
    caught_by = "OneOwner"
    also = ("GroupOffsetsMonotone",)
    plan = GROUPS

    def replacement(self, original: Any) -> Any:
        """Ask for nothing."""
        return lambda *arguments, **named: None


class EvenShares(Guard):
    """One member gets everything."""

    owner = target
    method = "ASSIGNORS"
    caught_by = "Settles"
    plan = GROUPS

    def replacement(self, original: Any) -> Any:
        """The first by its id."""

        def assign(spec: Any, partitions: Any) -> Any:
            even = original["uniform"](spec, partitions)
            first, *others = sorted(even)
            everything: dict[Any, tuple[int, ...]] = {}
            for owned in even.values():
                for topic_id, indexes in owned.items():
                    everything[topic_id] = (*everything.get(topic_id, ()), *indexes)
            return {first: everything} | {other: {} for other in others}

        return dict.fromkeys(original, assign)


TRANSACTION_GUARDS: dict[str, Guard] = {
    "offsets-with-records": OffsetsWithRecords(),
    "aborted-list": AbortedList(),
    "stable-bound": StableBound(),
    "offsets-wait": OffsetsWait(),
    "verified": Verified(),
    "lives-epoch": LivesEpoch(),
    "time-outs": TimeOuts(),
    "journaled-markers": JournaledMarkers(),
    "decision-kept": DecisionKept(),
    "effects-committed": EffectsCommitted(),
    "free-first": FreeFirst(),
    "commit-epochs": CommitEpochs(),
    "even-shares": EvenShares(),
}
"""By the name that BREAK= takes."""
SINGLE_GUARDS: dict[str, Guard] = GUARDS | TRANSACTION_GUARDS | STREAM_GUARDS
"""All that worlds of one node can do without."""
