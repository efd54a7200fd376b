"""Requests and answers of OffsetCommit and OffsetFetch for one group: what it has committed of some partitions.

Topics are named by id where both the caller knows it and the node takes it (version 10), which keeps what was read of a
deleted topic from being committed for another one of its name; else by name.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

from duramen.client.protocol.group_descriptions import LAST_WITH_TOPIC_NAMES, OFFSET_FETCH
from duramen.client.protocol.metadata import error_code, only
from duramen.errors import ErrorCode, KafkaError
from duramen.model import NO_TOPIC_ID, TopicId, TopicPartition
from duramen.wire.messages import API

OFFSET_COMMIT: Final = 8


class GroupOffset(NamedTuple):
    """What a group has committed of a partition. offset: of the next record to read; leader_epoch: of the record before
    it, -1 where it is not known; metadata: the committer's own note."""

    offset: int
    leader_epoch: int = -1
    metadata: str = ""


class Committer(NamedTuple):
    """Who commits, or asks what is committed: a member of the group at its epoch, or (the default) a program outside
    any membership, whose commits a group takes only while it has no members."""

    member_id: str = ""
    epoch: int = -1
    instance_id: str | None = None


NO_MEMBER: Final = Committer()


class PartitionNotAssignedError(KafkaError):
    """A member commits what is not assigned to it, or not any more: another member may have it, and read on."""

    def __init__(self, group: str, tp: TopicPartition) -> None:
        super().__init__(ErrorCode.ILLEGAL_GENERATION, f"{tp} is not assigned to this member of group {group} now")


class OffsetsExchange:
    """One commit, or one question, about partitions of a group: its requests, and what the answers say.

    topic_ids: by name, as far as they are known.
    """

    def __init__(
        self, group: str, committer: Committer = NO_MEMBER, topic_ids: Mapping[str, TopicId] | None = None
    ) -> None:
        self._group = group
        self._committer = committer
        self._topic_ids = topic_ids or {}

    def highest(self, partitions: Iterable[TopicPartition]) -> int | None:
        """The version that a request about these partitions may have; None: any."""
        has_all = all(self._topic_ids.get(tp.topic, NO_TOPIC_ID) != NO_TOPIC_ID for tp in partitions)
        return None if has_all else LAST_WITH_TOPIC_NAMES

    # ---- OffsetCommit ----------------------------------------------------------------------------------------

    def commit(self, positions: Mapping[TopicPartition, GroupOffset]) -> Any:
        """The OffsetCommit of these positions."""
        message = API[OFFSET_COMMIT].request
        topics = [
            message.OffsetCommitRequestTopic(
                name=name,
                topic_id=self._topic_ids.get(name, NO_TOPIC_ID),
                partitions=[
                    message.OffsetCommitRequestPartition(
                        partition_index=tp.partition,
                        committed_offset=positions[tp].offset,
                        committed_leader_epoch=positions[tp].leader_epoch,
                        committed_metadata=positions[tp].metadata,
                    )
                    for tp in tps
                ],
            )
            for name, tps in _by_topic(positions).items()
        ]
        member_id, epoch, instance_id = self._committer
        return message.new(
            group_id=self._group,
            generation_id_or_member_epoch=epoch,
            member_id=member_id,
            group_instance_id=instance_id,
            topics=topics,
        )

    @staticmethod
    def commit_code(response: Any) -> int:
        """The first error of the answer, 0 without one."""
        return next((each.error_code for topic in response.topics for each in topic.partitions if each.error_code), 0)

    def check_committed(self, response: Any, positions: Iterable[TopicPartition]) -> None:
        """KafkaError of the first partition that was refused, or was left out of the answer; others may be stored."""
        codes = {
            (topic.name or bytes(topic.topic_id), each.partition_index): each.error_code
            for topic in response.topics
            for each in topic.partitions
        }
        for tp in positions:
            code = error_code(self._found(codes, tp, int(ErrorCode.UNKNOWN_SERVER_ERROR)))
            if code is not ErrorCode.NONE:
                raise KafkaError(code, f"group {self._group} cannot commit {tp}: {code.name}")

    # ---- OffsetFetch -----------------------------------------------------------------------------------------

    def fetch(self, partitions: Iterable[TopicPartition]) -> Any:
        """The OffsetFetch of these partitions (version 8 or newer). One whose offset an open transaction may change is
        answered with UNSTABLE_OFFSET_COMMIT."""
        message = API[OFFSET_FETCH].request
        topics = [
            message.OffsetFetchRequestTopics(
                name=name,
                topic_id=self._topic_ids.get(name, NO_TOPIC_ID),
                partition_indexes=[tp.partition for tp in tps],
            )
            for name, tps in _by_topic(partitions).items()
        ]
        member_id, epoch, _ = self._committer
        wanted = message.OffsetFetchRequestGroup(
            group_id=self._group, member_id=member_id or None, member_epoch=epoch, topics=topics
        )
        return message.new(groups=[wanted], require_stable=True)

    @staticmethod
    def fetch_code(response: Any) -> int:
        """The first error of the answer, 0 without one."""
        for group in response.groups:
            if group.error_code:
                return int(group.error_code)
            for topic in group.topics:
                for each in topic.partitions:
                    if each.error_code:
                        return int(each.error_code)
        return 0

    def fetched(self, response: Any, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, GroupOffset]:
        """The positions of those partitions that have one. KafkaError where the group, or a partition, is refused."""
        group = only(response.groups, f"OffsetFetch of group {self._group}")
        if group.error_code:
            code = error_code(group.error_code)
            raise KafkaError(code, f"offsets of group {self._group}: {code.name}")
        answers = {
            (topic.name or bytes(topic.topic_id), each.partition_index): each
            for topic in group.topics
            for each in topic.partitions
        }
        found: dict[TopicPartition, GroupOffset] = {}
        for tp in partitions:
            answer = self._found(answers, tp, None)
            code = ErrorCode.UNKNOWN_SERVER_ERROR if answer is None else error_code(answer.error_code)
            if code is not ErrorCode.NONE:
                raise KafkaError(code, f"offset of group {self._group} in {tp}: {code.name}")
            if answer.committed_offset >= 0:
                epoch, note = answer.committed_leader_epoch, answer.metadata or ""
                found[tp] = GroupOffset(answer.committed_offset, epoch, note)
        return found

    def _found(self, answers: Mapping[tuple[Any, int], Any], tp: TopicPartition, missing: Any) -> Any:
        """The answer for a partition, by its topic's name or id."""
        by_name = answers.get((tp.topic, tp.partition))
        if by_name is not None:
            return by_name
        return answers.get((self._topic_ids.get(tp.topic, NO_TOPIC_ID), tp.partition), missing)


def _by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[TopicPartition]]:
    found: dict[str, list[TopicPartition]] = {}
    for tp in partitions:
        found.setdefault(tp.topic, []).append(tp)
    return found
