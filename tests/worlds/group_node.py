"""A node on asyncio that coordinates a group: heartbeats are decided by our own machine, commits by a test."""

from __future__ import annotations

from typing import Any

from tests.worlds.async_node import VERSIONS, Asked
from tests.worlds.consumer_harness import ConsumerWorld
from tests.worlds.group_members import decided, refusal, response

from duramen.errors import ErrorCode, KafkaError
from duramen.wire.messages import API

OFFSET_COMMIT, OFFSET_FETCH, METADATA, FIND_COORDINATOR, HEARTBEAT = 8, 9, 3, 10, 68
SERVED = {**VERSIONS, OFFSET_COMMIT: (2, 10), OFFSET_FETCH: (1, 10), HEARTBEAT: (0, 1)}


class GroupNode:
    """`behave` of an AsyncNode. A second passes for the coordinator with each heartbeat; it asks for ten a second."""

    def __init__(self, **partitions: int) -> None:
        self.world = ConsumerWorld(**partitions)
        self.codes: list[ErrorCode] = []
        """Of the next heartbeats; decided when there is none."""
        self.commits: list[Asked] = []
        self.commit_codes: list[ErrorCode] = []
        """Of the next commits; NONE when there is none."""
        self.holds_commits = False
        self.offsets: dict[tuple[str, int], tuple[int, int, str]] = {}
        self.offset_codes: list[ErrorCode] = []
        """Of the partitions in the next OffsetFetch answers."""
        self.hides_topics = 0
        """So many questions about topics by id find nothing."""
        self.silent = False
        self.asked: list[Asked] = []

    def of(self, key: int) -> list[Asked]:
        return [asked for asked in self.asked if asked.key == key]

    def behave(self, asked: Asked) -> None:
        self.asked.append(asked)
        if self.silent and asked.key == HEARTBEAT:
            return
        answers = {
            FIND_COORDINATOR: self._coordinator,
            METADATA: self._metadata,
            HEARTBEAT: self._heartbeat,
            OFFSET_FETCH: self._offsets,
        }
        if asked.key == OFFSET_COMMIT:
            self.commits.append(asked)
            if not self.holds_commits:
                self.answer_commits()
        else:
            asked.answer(answers[asked.key](asked))

    def answer_commits(self) -> None:
        """Those that were held back."""
        commits, self.commits = self.commits, []
        for asked in commits:
            code = self.commit_codes.pop(0) if self.commit_codes else ErrorCode.NONE
            asked.answer(self._committed(asked, code))

    def _coordinator(self, asked: Asked) -> Any:
        message = API[FIND_COORDINATOR].response
        found = message.Coordinator(
            key=asked.request.coordinator_keys[0], node_id=0, host="127.0.0.1", port=asked.node.port, error_code=0
        )
        return message.new(coordinators=[found])

    def _metadata(self, asked: Asked) -> Any:
        message = API[METADATA].response
        topics = []
        for wanted in asked.request.topics:
            name = wanted.name or self.world.topics.name_of(bytes(wanted.topic_id))
            seen = self.world.topics.topic(name or "")
            if seen is None or (wanted.name is None and self.hides_topics):
                code = int(ErrorCode.UNKNOWN_TOPIC_ID)
                topics.append(message.MetadataResponseTopic(error_code=code, name=None, topic_id=wanted.topic_id))
            else:
                topics.append(message.MetadataResponseTopic(error_code=0, name=name, topic_id=seen.id))
        self.hides_topics = max(self.hides_topics - 1, 0)
        brokers = [message.MetadataResponseBroker(node_id=0, host="127.0.0.1", port=asked.node.port)]
        return message.new(brokers=brokers, controller_id=0, topics=topics)

    def _heartbeat(self, asked: Asked) -> Any:
        if self.codes:
            return refusal(self.codes.pop(0))
        self.world.clock.advance(1_000)
        answer = decided(self.world, asked.request, asked.header.api_version)
        if isinstance(answer, KafkaError):
            return refusal(answer.code, answer.message)
        return response(answer._replace(heartbeat_interval_ms=100))

    def _committed(self, asked: Asked, code: ErrorCode) -> Any:
        message = API[OFFSET_COMMIT].response
        topics = []
        for topic in asked.request.topics:
            partitions = []
            for each in topic.partitions:
                name = topic.name or self.world.topics.name_of(bytes(topic.topic_id)) or ""
                if not code:
                    note = each.committed_metadata
                    place = (each.committed_offset, each.committed_leader_epoch, note)
                    self.offsets[name, each.partition_index] = place
                made = message.OffsetCommitResponsePartition(partition_index=each.partition_index, error_code=int(code))
                partitions.append(made)
            made_topic = message.OffsetCommitResponseTopic(
                name=topic.name, topic_id=topic.topic_id, partitions=partitions
            )
            topics.append(made_topic)
        return message.new(topics=topics)

    def _offsets(self, asked: Asked) -> Any:
        message = API[OFFSET_FETCH].response
        code = int(self.offset_codes.pop(0)) if self.offset_codes else 0
        (group,) = asked.request.groups
        topics = []
        for topic in group.topics:
            name = topic.name or self.world.topics.name_of(bytes(topic.topic_id)) or ""
            partitions = []
            for index in topic.partition_indexes:
                offset, epoch, note = self.offsets.get((name, index), (-1, -1, None))
                partitions.append(
                    message.OffsetFetchResponsePartitions(
                        partition_index=index,
                        committed_offset=offset,
                        committed_leader_epoch=epoch,
                        metadata=note,
                        error_code=code,
                    )
                )
            topics.append(
                message.OffsetFetchResponseTopics(name=topic.name, topic_id=topic.topic_id, partitions=partitions)
            )
        return message.new(
            groups=[message.OffsetFetchResponseGroup(group_id=group.group_id, topics=topics, error_code=0)]
        )
