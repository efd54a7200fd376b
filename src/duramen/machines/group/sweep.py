"""Goes through the groups of one machine, slice by slice, for what is to be removed: offsets that expired, offsets of
topics that were deleted, groups of which nothing is left."""

from __future__ import annotations

from collections import deque
from typing import Final, Protocol

from duramen.machines.ages import Ages
from duramen.machines.contract import LogRecord, Outcome
from duramen.machines.group import offsets, records
from duramen.machines.group.classic import rebalance
from duramen.machines.group.classic.state import Group, GroupState
from duramen.machines.group.commands import CommittedOffset
from duramen.machines.group.consumer import records as consumer_records
from duramen.machines.group.consumer.groups import ConsumerGroups
from duramen.machines.group.pending_offsets import Position
from duramen.machines.group.settings import GroupSettings
from duramen.model import NO_TOPIC_ID, TopicId

SLICE_RECORDS: Final = 500
SLICE_BYTES: Final = 256 << 10
"""Tombstones written in one decision; the rest follows in further ones."""
SLICE_POSITIONS: Final = 5_000
"""Offsets that one decision looks at; a group is looked at as a whole."""
RETRY_MS: Final = 1000
"""How long tombstones wait after the log refused them."""


class SweptGroups(Protocol):
    """What a sweep reads of the machine whose groups it goes through."""

    settings: GroupSettings
    stored: dict[str, records.StoredGroup]
    offsets: offsets.OffsetTable
    groups: dict[str, Group]
    consumers: ConsumerGroups
    ages: Ages


class Sweep:
    """One at a time: from the first group to the last, then idle until it is begun again."""

    def __init__(self) -> None:
        self._left: deque[str] | None = None
        """Groups that are still to be looked at; None while no sweep runs."""
        self._dropped: dict[tuple[str, TopicId], int] = {}
        """Deleted topics, (name, id), and when they were."""
        self._tickets: list[int] = []

    def drop(self, topics: tuple[tuple[str, TopicId], ...], ticket: int, now: int) -> None:
        """Remove the offsets of these topics, in a sweep from the next step on; the ticket is answered at its end."""
        self._dropped.update(dict.fromkeys(topics, now))
        self._tickets.append(ticket)
        self._left = None

    def refused(self, now: int, out: Outcome) -> None:
        """The log took none of a step: begin again, a little later."""
        self._left = None
        out.timers.append((rebalance.EXPIRY, now + RETRY_MS))

    def step(self, machine: SweptGroups, now: int, out: Outcome) -> bool:
        """The next slice; the timer brings another one, and the next sweep. Whether tombstones are written."""
        if self._left is None:
            self._left = deque([*machine.groups, *machine.consumers.groups])
        found = _Slice()
        looked_at = 0
        while self._left and looked_at < SLICE_POSITIONS:
            looked_at += 1 + len(machine.offsets.of(self._left[0]))
            if not self._look_at(machine, self._left[0], now, found):
                break
            self._left.popleft()
        out.records = found.records
        # What the last slice wrote may be refused: only a step that writes nothing ends the sweep.
        is_over = not self._left and not found.records
        out.timers.append((rebalance.EXPIRY, now + (machine.settings.retention_check_interval_ms if is_over else 0)))
        if is_over:
            self._left = None
            self._dropped.clear()
            out.replies += [(ticket, True) for ticket in self._tickets]
            self._tickets.clear()
        return bool(found.records)

    def _look_at(self, machine: SweptGroups, group_id: str, now: int, found: _Slice) -> bool:
        """False where the slice was full before the group's end."""
        group = machine.groups.get(group_id)
        consumers = machine.consumers.groups.get(group_id)
        table = machine.offsets
        before = len(found.records)
        if self._dropped:
            for position in self._dropped_of(table, group_id):
                if not found.add(records.offset_tombstone(group_id, *position)):
                    return False
            if len(found.records) > before:
                return True  # what else it has is looked at by the next sweep
        retention_ms, ages = machine.settings.offsets_retention_ms, machine.ages
        if consumers is not None:
            is_subscribed = consumers.is_subscribed
            positions = offsets.expired_unsubscribed(group_id, is_subscribed, None, table, retention_ms, ages, now)
        elif group is not None:
            positions = offsets.expired(group, table, retention_ms, ages, now)
        else:
            return True
        expired = 0
        for position in positions:
            expired += 1
            if not found.add(records.offset_tombstone(group_id, *position)):
                return False
        if expired < len(table.of(group_id)) or group_id in table.pending:
            return True
        if consumers is not None and not consumers.members:
            return found.add_all(consumer_records.group_tombstones(consumers))
        is_idle = group is not None and group.state is GroupState.EMPTY and not group.pending_joins
        if is_idle and group_id in machine.stored:
            return found.add(records.group_tombstone(group_id))
        return True

    def _dropped_of(self, table: offsets.OffsetTable, group_id: str) -> list[Position]:
        """Positions of dropped topics. Not those where a transaction has written an offset of a later topic of the
        name: a tombstone would take that, too, and the group would read again what the transaction has done.
        """
        committed = table.of(group_id)
        found = {position: None for position, each in committed.items() if self._is_dropped(position[0], each)}
        kept = set()
        for position, each in table.pending.values(group_id):
            if self._is_dropped(position[0], each):
                found[position] = None
            else:
                kept.add(position)
        return [position for position in found if position not in kept]

    def _is_dropped(self, name: str, committed: CommittedOffset) -> bool:
        """One with another id belongs to a later topic of that name, as does one without an id that is younger."""
        if committed.topic_id != NO_TOPIC_ID:
            return (name, committed.topic_id) in self._dropped
        return any(topic == name and committed.commit_timestamp <= when for (topic, _), when in self._dropped.items())


class _Slice:
    """Gathers tombstones up to a batch that is sure to fit."""

    def __init__(self) -> None:
        self.records: list[LogRecord] = []
        self._bytes = 0

    def add(self, record: LogRecord) -> bool:
        """Whether there is room for another one."""
        return self.add_all([record])

    def add_all(self, records: list[LogRecord]) -> bool:
        """The same for several that belong together."""
        self.records += records
        self._bytes += sum(len(record.key or b"") for record in records)
        return len(self.records) < SLICE_RECORDS and self._bytes < SLICE_BYTES
