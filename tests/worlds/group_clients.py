"""Clients of a group machine that speak to it in commands of the classic protocol."""

from __future__ import annotations

from typing import Any

from tests.worlds.machine_fakes import FakeClock

from duramen.errors import ErrorCode
from duramen.machines.contract import ProducerEpoch
from duramen.machines.group import (
    CommitOffsets,
    CommitTransactionOffsets,
    FetchOffsets,
    GroupMachine,
    Heartbeat,
    Joined,
    JoinGroup,
    LeaveGroup,
    Leaver,
    NewOffset,
    SyncedMember,
    SyncGroup,
)

SESSION = 10_000
REBALANCE = 60_000
RANGE = (("range", b"r"),)


class GroupClients:
    """What is asked of a machine, whoever runs it."""

    machine: GroupMachine
    clock: FakeClock
    uuid = 0

    def submit(self, command: Any) -> list[Any]:
        """The list into which the answer will come."""
        raise NotImplementedError

    def ask(self, command: Any) -> Any:
        """The answer, which must come at once."""
        answers = self.submit(command)
        assert len(answers) == 1, f"{command} is parked"
        return answers[0]

    def join_command(self, member_id: str = "", group: str = "g", **options: Any) -> JoinGroup:
        self.uuid += 1
        fields: dict[str, Any] = {
            "group_id": group,
            "member_id": member_id,
            "instance_id": None,
            "client_id": "c",
            "client_host": "/127.0.0.1",
            "session_timeout_ms": SESSION,
            "rebalance_timeout_ms": REBALANCE,
            "protocol_type": "consumer",
            "protocols": RANGE,
            "new_id": f"uuid{self.uuid}",
        }
        return JoinGroup(**{**fields, **options})

    def join(self, member_id: str = "", group: str = "g", **options: Any) -> list[Any]:
        """Park a join; a dynamic member gets its id first, as clients do."""
        if not member_id and options.get("instance_id") is None and options.get("requires_member_id", True):
            given = self.ask(self.join_command("", group, **options))
            if given.error != ErrorCode.MEMBER_ID_REQUIRED:
                return [given]
            member_id = given.member_id
        return self.submit(self.join_command(member_id, group, **options))

    def sync_command(self, joined: Joined, group: str = "g", **options: Any) -> SyncGroup:
        fields: dict[str, Any] = {
            "group_id": group,
            "generation": joined.generation,
            "member_id": joined.member_id,
            "protocol_type": joined.protocol_type,
            "protocol": joined.protocol,
        }
        if joined.members and not joined.skip_assignment:
            fields["assignments"] = tuple((m.member_id, f"for {m.member_id}".encode()) for m in joined.members)
        return SyncGroup(**{**fields, **options})

    def stable(self, count: int = 1, group: str = "g", **options: Any) -> list[Joined]:
        """A group of so many members with assignments; the leader comes first."""
        parked = [self.join("", group, **options) for _ in range(count)]
        self.clock.advance(3000 * count)
        joined = sorted((answers[0] for answers in parked), key=lambda answer: not answer.members)
        assert all(answer.error == ErrorCode.NONE for answer in joined), joined
        syncs = [self.submit(self.sync_command(answer, group)) for answer in reversed(joined)]
        assert all(synced[0].error == ErrorCode.NONE for synced in syncs)
        return joined

    def heartbeat(self, joined: Joined, group: str = "g", instance_id: str | None = None) -> ErrorCode:
        answer = self.ask(Heartbeat(group, joined.generation, joined.member_id, instance_id))
        assert isinstance(answer, ErrorCode)
        return answer

    def leave(self, *member_ids: str, group: str = "g") -> Any:
        return self.ask(LeaveGroup(group, tuple(Leaver(member_id) for member_id in member_ids)))

    def commit(
        self, *offsets: NewOffset, group: str = "g", member_id: str = "", generation: int = -1, **options: Any
    ) -> Any:
        instance_id = options.pop("instance_id", None)
        return self.ask(CommitOffsets(group, member_id, instance_id, generation, offsets, **options))

    def commit_in_transaction(
        self,
        producer: ProducerEpoch,
        *offsets: NewOffset,
        group: str = "g",
        member_id: str = "",
        generation: int = -1,
        instance_id: str | None = None,
    ) -> Any:
        return self.ask(CommitTransactionOffsets(group, member_id, instance_id, generation, producer, offsets))

    def fetch(self, group: str = "g", partitions: Any = None, *, stable: bool = False) -> Any:
        return self.ask(FetchOffsets(group, partitions, stable))

    def state(self, group: str = "g") -> str | None:
        found = self.machine.groups.get(group)
        return None if found is None else found.state.value


def assignment(synced: SyncedMember) -> bytes:
    assert synced.error == ErrorCode.NONE
    return synced.assignment
