"""A group machine behind a host, and clients that speak to it in commands."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from tests.worlds.group_clients import RANGE, REBALANCE, SESSION, GroupClients, assignment
from tests.worlds.machine_fakes import FakeClock, FakePartition

from duramen.machines.contract import ProducerEpoch
from duramen.machines.group import GroupMachine, GroupSettings
from duramen.partition.host.host import Host
from duramen.wire.batch import ABORT, COMMIT, Marker

__all__ = ["RANGE", "REBALANCE", "SESSION", "Coordinator", "assignment", "subscription"]


def subscription(*topics: str) -> bytes:
    """A consumer's metadata, version 0."""
    body = b"".join(len(topic).to_bytes(2, "big") + topic.encode() for topic in topics)
    return b"\0\0" + len(topics).to_bytes(4, "big") + body + b"\xff\xff\xff\xff"


class Coordinator(GroupClients):
    """A loaded group machine whose log commits at once unless told otherwise."""

    def __init__(
        self,
        settings: GroupSettings | None = None,
        partition: FakePartition | None = None,
        clock: FakeClock | None = None,
    ) -> None:
        self.clock = clock or FakeClock()
        self.partition = partition or FakePartition()
        self.partition.commit_at_once = True
        self.machine = GroupMachine(settings)
        self.host = Host(self.partition, self.machine, self.clock, on_clock_set=self.machine.ages.clock_set)
        self.host.load()

    def submit(self, command: Any) -> list[Any]:
        """The list into which the answer will come."""
        answers: list[Any] = []
        self.host.submit(command, answers.append)
        return answers

    def end(self, producer: ProducerEpoch, *, commit: bool) -> None:
        """The marker of the producer's transaction, once the log has it."""
        answers: list[Any] = []
        self.begin_end(producer, commit=commit, done=answers.append)
        assert answers == [None]

    def begin_end(self, producer: ProducerEpoch, *, commit: bool, done: Callable[[Any], None]) -> None:
        """As `end`, without waiting."""
        append = partial(self.partition.append_marker, producer, commit, 0, 2)
        self.host.end_transaction(producer, Marker(COMMIT if commit else ABORT, 0), append, done)

    def reloaded(self, settings: GroupSettings | None = None) -> Coordinator:
        """Another coordinator that takes over the log."""
        self.host.close()
        return Coordinator(settings or self.machine.settings, self.partition, self.clock)

    def durable(self) -> Any:
        return dict(self.machine.stored), self.machine.offsets.snapshot()
