"""Decides the creation, growth and deletion of topics (KRaft's rules: KIP-464, KIP-516, KIP-599's limits apart)."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from duramen.config import BrokerConfig, validate_topic_configs
from duramen.config.setting import PARTITIONS_MAX
from duramen.errors import ConfigError, ErrorCode, KafkaError
from duramen.machines.contract import LogRecord
from duramen.machines.metadata import codec
from duramen.machines.metadata.commands import (
    OK,
    Assignment,
    CreatePartitions,
    CreateTopics,
    DeleteTopics,
    MorePartitions,
    NewTopic,
    RaiseEpochs,
    RegainTopics,
    Result,
    TopicCreated,
    TopicDeleted,
    TopicRef,
)
from duramen.machines.metadata.image import (
    LOST_DIRECTORY,
    NO_LEADER,
    UNASSIGNED_DIRECTORY,
    MetadataImage,
    PartitionImage,
)
from duramen.machines.metadata.placement import place
from duramen.model import (
    METADATA_TOPIC,
    METADATA_TOPIC_ID,
    NO_TOPIC_ID,
    OFFSETS_TOPIC,
    SINK_TOPICS,
    STATE_TOPICS,
    TRANSACTIONS_TOPIC,
    TopicId,
)

MAX_NAME_LENGTH: Final = 249
MAX_CONFIG_VALUE: Final = 32_767

_LEGAL = re.compile(r"[a-zA-Z0-9._-]+", re.ASCII)


def name_problem(name: str) -> str | None:
    """Why this cannot be a topic's name; None when it can. Such names never leave the data directory either."""
    if not name:
        return "the empty string is not allowed"
    if name in (".", ".."):
        return f"'{name}' is not allowed"
    if len(name) > MAX_NAME_LENGTH:
        return f"the length of '{name}' is longer than the max allowed length {MAX_NAME_LENGTH}"
    if not _LEGAL.fullmatch(name):
        return f"'{name}' contains one or more characters other than ASCII alphanumerics, '.', '_' and '-'"
    return None


# ---------------------------------------------------------------------- creation


def create_topics(
    image: MetadataImage, config: BrokerConfig, command: CreateTopics
) -> tuple[list[LogRecord], list[TopicCreated]]:
    """Records and one answer per topic; topics fail one by one, the rest is created."""
    asked = sum(max(topic.partitions, len(topic.assignments), 1) for topic in command.topics)
    if asked > PARTITIONS_MAX:
        raise KafkaError(
            ErrorCode.POLICY_VIOLATION,
            f"{asked} partitions in one request; {PARTITIONS_MAX} are allowed",
        )
    times = Counter(topic.name for topic in command.topics)
    records: list[LogRecord] = []
    answers: list[TopicCreated] = []
    created: dict[str, str] = {}
    for topic in command.topics:
        try:
            if times[topic.name] > 1:
                raise KafkaError(ErrorCode.INVALID_REQUEST, f"Duplicate topic name: {topic.name}")
            assignments = _creation(image, config, command, topic, created)
        except KafkaError as error:
            answers.append(TopicCreated(topic.name, Result(error.code, error.message)))
            continue
        created[topic.name.replace(".", "_")] = topic.name
        records.extend(_creation_records(image, topic, assignments))
        copies = len(assignments[0][1])
        answers.append(TopicCreated(topic.name, OK, topic.topic_id, len(assignments), copies))
    return ([] if command.validate_only else records), answers


def _creation(
    image: MetadataImage, config: BrokerConfig, command: CreateTopics, topic: NewTopic, created: Mapping[str, str]
) -> list[Assignment]:
    """Where the new topic's partitions go; KafkaError when it cannot be created."""
    name = topic.name
    if name == METADATA_TOPIC:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"Creation of internal topic {name} is prohibited.")
    problem = name_problem(name)
    if problem is not None:
        raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"Topic name is invalid: {problem}")
    if name in image.topics:
        raise KafkaError(ErrorCode.TOPIC_ALREADY_EXISTS, f"Topic '{name}' already exists.")
    other = image.colliding_topic(name) or created.get(name.replace(".", "_"))
    if other is not None:
        raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"Topic '{name}' collides with existing topic: {other}")
    _check_configs(config, topic)
    if topic.assignments:
        return _manual(image, topic)
    copies = topic.replication_factor
    if copies == 0 or copies < -1:
        raise KafkaError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            "Replication factor must be larger than 0, or -1 to use the default value.",
        )
    count = topic.partitions
    if count == 0 or count < -1:
        raise KafkaError(ErrorCode.INVALID_PARTITIONS, "Number of partitions was set to an invalid non-positive value.")
    count = command.default_partitions if count == -1 else count
    copies = command.default_replication_factor if copies == -1 else copies
    return list(enumerate(place(image, topic.topic_id, count, copies)))


def _check_configs(config: BrokerConfig, topic: NewTopic) -> None:
    given: dict[str, str] = {}
    for key, value in topic.configs:
        if value is None:
            raise KafkaError(ErrorCode.INVALID_CONFIG, f"Null value not supported for topic configs: {key}")
        if len(value.encode()) > MAX_CONFIG_VALUE:
            raise KafkaError(ErrorCode.INVALID_CONFIG, f"The value of {key} exceeds {MAX_CONFIG_VALUE} bytes")
        given[key] = value
    try:
        validate_topic_configs(config, given)
    except ConfigError as error:
        raise KafkaError(ErrorCode.INVALID_CONFIG, str(error)) from error


def _manual(image: MetadataImage, topic: NewTopic) -> list[Assignment]:
    if topic.replication_factor != -1:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            "A manual partition assignment was specified, but replication factor was not set to -1.",
        )
    if topic.partitions != -1:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            "A manual partition assignment was specified, but number of partitions was not set to -1.",
        )
    by_index: dict[int, tuple[int, ...]] = {}
    copies: int | None = None
    for index, replicas in topic.assignments:
        if index in by_index:
            raise _bad_assignment(f"Found multiple manual partition assignments for partition {index}")
        check_replicas(image, replicas, copies)
        copies = len(replicas)
        by_index[index] = replicas
    if sorted(by_index) != list(range(len(by_index))):
        raise _bad_assignment("partitions should be a consecutive 0-based integer sequence")
    return [(index, by_index[index]) for index in range(len(by_index))]


def check_replicas(image: MetadataImage, replicas: Sequence[int], copies: int | None) -> None:
    """Whether a partition may live on these nodes; `copies`: how many the topic's others have, None for the first."""
    if not replicas:
        raise _bad_assignment("The manual partition assignment includes an empty replica list.")
    seen: set[int] = set()
    for node_id in replicas:
        if node_id not in image.brokers:
            raise _bad_assignment(
                f"The manual partition assignment includes broker {node_id}, but no such broker is registered."
            )
        if node_id in seen:
            raise _bad_assignment(f"The manual partition assignment includes the broker {node_id} more than once.")
        seen.add(node_id)
    if copies is not None and len(replicas) != copies:
        raise _bad_assignment(
            f"The manual partition assignment includes a partition with {len(replicas)} replica(s), but this is not "
            f"consistent with previous partitions, which have {copies} replica(s)."
        )
    if not any(image.brokers[node_id].active for node_id in replicas):
        raise _bad_assignment(f"All brokers specified in the manual partition assignment {list(replicas)} are fenced.")


def _bad_assignment(message: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, message)


def _creation_records(image: MetadataImage, topic: NewTopic, assignments: Iterable[Assignment]) -> Iterator[LogRecord]:
    yield codec.topic(topic.name, topic.topic_id)
    for key, value in topic.configs:
        yield codec.topic_config(topic.name, key, value)
    for index, replicas in assignments:
        yield _new_partition(image, topic.topic_id, index, replicas)


def regain_topics(image: MetadataImage, command: RegainTopics) -> tuple[list[LogRecord], tuple[TopicId, ...]]:
    """Records of topics and partitions that are lost from the log, and their topics' ids."""
    times = Counter(topic.name for topic in command.topics)
    nodes = (command.node_id,)
    records: list[LogRecord] = []
    regained = []
    for topic in command.topics:
        known = image.topics_by_id.get(topic.topic_id)
        if times[topic.name] > 1 or image.topics.get(topic.name) is not known or name_problem(topic.name) is not None:
            continue
        regained.append(topic.topic_id)
        if known is None:
            records.append(codec.topic(topic.name, topic.topic_id))
            records.extend(codec.topic_config(topic.name, key, value) for key, value in topic.configs)
        for index in range(0 if known is None else len(known.partitions), len(topic.epochs)):
            home = LOST_DIRECTORY if index in topic.missing else UNASSIGNED_DIRECTORY
            state = PartitionImage(command.node_id, topic.epochs[index], 0, nodes, nodes, directories=(home,))
            records.append(codec.partition_state(topic.topic_id, index, state))
    return records, tuple(regained)


def raise_epochs(image: MetadataImage, command: RaiseEpochs) -> tuple[list[LogRecord], None]:
    """Records of those partitions that are behind; another node's are that node's."""
    records = []
    for topic_id, index, epoch in command.epochs:
        topic = image.topics_by_id.get(topic_id)
        state = None if topic is None or index >= len(topic.partitions) else topic.partitions[index]
        if state is not None and state.leader_epoch < epoch and state.leader in (command.node_id, NO_LEADER):
            state = state._replace(leader_epoch=epoch, partition_epoch=state.partition_epoch + 1)
            records.append(codec.partition_state(topic_id, index, state))
    return records, None


def _new_partition(image: MetadataImage, topic_id: bytes, index: int, replicas: Sequence[int]) -> LogRecord:
    in_sync = [node_id for node_id in replicas if image.brokers[node_id].active]
    return codec.partition(topic_id, index, replicas, in_sync, in_sync[0])


# ---------------------------------------------------------------------- growth


def create_partitions(
    image: MetadataImage, command: CreatePartitions
) -> tuple[list[LogRecord], list[tuple[str, Result]]]:
    """Records and one answer per topic."""
    times = Counter(topic.name for topic in command.topics)
    records: list[LogRecord] = []
    answers: list[tuple[str, Result]] = []
    for topic in command.topics:
        try:
            if times[topic.name] > 1:
                raise KafkaError(ErrorCode.INVALID_REQUEST, "Duplicate topic name.")
            grown = _growth(image, topic)
            if len(records) + len(grown) > PARTITIONS_MAX:
                raise KafkaError(
                    ErrorCode.POLICY_VIOLATION, f"more than {PARTITIONS_MAX} new partitions in one request"
                )
        except KafkaError as error:
            answers.append((topic.name, Result(error.code, error.message)))
            continue
        records.extend(grown)
        answers.append((topic.name, OK))
    return ([] if command.validate_only else records), answers


_KEPT_IN: Final = {OFFSETS_TOPIC: "group", TRANSACTIONS_TOPIC: "transactional id"}


def _growth(image: MetadataImage, asked: MorePartitions) -> list[LogRecord]:
    topic = image.topics.get(asked.name)
    if topic is None:
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"The topic '{asked.name}' does not exist.")
    if topic.name in STATE_TOPICS:
        kind = _KEPT_IN.get(topic.name, "sink")
        raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"{topic.name}: a {kind}'s place depends on their number.")
    present = len(topic.partitions)
    if asked.total == present:
        raise KafkaError(ErrorCode.INVALID_PARTITIONS, f"Topic already has {present} partition(s).")
    if asked.total < present:
        raise KafkaError(
            ErrorCode.INVALID_PARTITIONS,
            f"The topic {asked.name} currently has {present} partition(s); {asked.total} would not be an increase.",
        )
    additional = asked.total - present
    if asked.assignments is None:
        if additional > PARTITIONS_MAX:
            raise KafkaError(
                ErrorCode.POLICY_VIOLATION,
                f"{additional} new partitions in one request; {PARTITIONS_MAX} are allowed",
            )
        placed = place(image, topic.id, additional, topic.replication_factor, present)
    else:
        if len(asked.assignments) != additional:
            raise _bad_assignment(
                f"Attempted to add {additional} additional partition(s), but only {len(asked.assignments)} "
                "assignment(s) were specified."
            )
        placed = list(asked.assignments)
        for replicas in placed:
            check_replicas(image, replicas, topic.replication_factor)
    return [_new_partition(image, topic.id, present + index, replicas) for index, replicas in enumerate(placed)]


# ---------------------------------------------------------------------- deletion


def delete_topics(image: MetadataImage, command: DeleteTopics) -> tuple[list[LogRecord], list[TopicDeleted]]:
    """Records and one answer per topic; a topic named twice, by name or by id, is refused everywhere."""
    found = [_find(image, reference) for reference in command.topics]
    times = Counter(answer.topic_id for answer in found if answer.topic_id != NO_TOPIC_ID)
    records: list[LogRecord] = []
    answers: list[TopicDeleted] = []
    for answer in found:
        if times[answer.topic_id] > 1:
            text = "Duplicate topic in request."
            answers.append(TopicDeleted(answer.name, answer.topic_id, Result(ErrorCode.INVALID_REQUEST, text)))
            continue
        if answer.name in SINK_TOPICS and answer.result is OK:
            refusal = Result(ErrorCode.INVALID_TOPIC_EXCEPTION, f"{answer.name} holds batches that are committed.")
            answers.append(TopicDeleted(answer.name, answer.topic_id, refusal))
            continue
        if answer.result is OK:
            records.append(codec.remove_topic(answer.topic_id))
        answers.append(answer)
    return records, answers


def _find(image: MetadataImage, reference: TopicRef) -> TopicDeleted:
    name, topic_id = reference
    if name is not None and topic_id != NO_TOPIC_ID:
        text = "You may not specify both topic name and topic id."
        return TopicDeleted(name, NO_TOPIC_ID, Result(ErrorCode.INVALID_REQUEST, text))
    if name is not None:
        topic = image.topics.get(name)
        if topic is None:
            error = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            return TopicDeleted(name, NO_TOPIC_ID, Result(error, "This server does not host this topic-partition."))
        return TopicDeleted(name, topic.id, OK)
    if topic_id == NO_TOPIC_ID:
        text = "Neither topic name nor id were specified."
        return TopicDeleted(None, NO_TOPIC_ID, Result(ErrorCode.INVALID_REQUEST, text))
    topic = image.topics_by_id.get(topic_id)
    if topic is None or topic_id == METADATA_TOPIC_ID:
        text = "This server does not host this topic ID."
        return TopicDeleted(None, topic_id, Result(ErrorCode.UNKNOWN_TOPIC_ID, text))
    return TopicDeleted(topic.name, topic_id, OK)
