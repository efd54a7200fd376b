"""CreateTopics, DeleteTopics and CreatePartitions: checked and decided by the metadata machine.

CreateTopics 2-7: v5 returns the configuration in force · v7 topic ids. DeleteTopics 1-6: v6 by topic id.
CreatePartitions 0-3. Replies leave when the change is committed and the partitions are there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from duramen.config import describe_topic
from duramen.errors import DuramenError, ErrorCode
from duramen.machines.metadata.commands import (
    CreatePartitions,
    CreateTopics,
    DeleteTopics,
    MorePartitions,
    NewTopic,
    TopicCreated,
    TopicDeleted,
    TopicRef,
)
from duramen.model import NO_TOPIC_ID, STATE_TOPICS
from duramen.wire.messages.create_partitions import CreatePartitionsResponse
from duramen.wire.messages.create_topics import CreateTopicsResponse
from duramen.wire.messages.delete_topics import DeleteTopicsResponse

if TYPE_CHECKING:
    from duramen.server.api.request import Request
    from duramen.server.api.services import ControllerService

Described = dict[frozenset[tuple[str, str]], list[Any]]
"""What a topic with these settings is told of all its settings: most of one request have the same."""


def handle_create(request: Request) -> None:
    """Create topics; each one is refused or taken alone. A name given twice is refused."""
    body = request.body
    services = request.services
    counts: dict[str, int] = {}
    for topic in body.topics:
        counts[topic.name] = counts.get(topic.name, 0) + 1
    refused = [
        _creation_refused(name, ErrorCode.INVALID_REQUEST, "the topic is named twice in the request")
        for name, count in counts.items()
        if count > 1
    ] + [
        _creation_refused(name, ErrorCode.TOPIC_AUTHORIZATION_FAILED, "not allowed to create this topic")
        for name, count in counts.items()
        if count == 1 and name in request.denied
    ]
    wanted = [topic for topic in body.topics if counts[topic.name] == 1 and topic.name not in request.denied]
    by_name = {topic.name: topic for topic in wanted}

    def answered(results: list[TopicCreated] | DuramenError) -> None:
        if isinstance(results, DuramenError):
            entries = [_creation_refused(topic.name, results.code, str(results)) for topic in wanted]
        else:
            described: Described = {}
            entries = [_created(request, by_name[result.name], result, described) for result in results]
        request.reply(CreateTopicsResponse.new(topics=refused + entries))

    services.controller.submit(
        CreateTopics(
            tuple(_new_topic(services.controller, topic) for topic in wanted),
            body.validate_only,
            services.config.integer("num.partitions"),
            services.config.integer("default.replication.factor"),
        ),
        answered,
    )


def _new_topic(controller: ControllerService, topic: Any) -> NewTopic:
    if topic.name in STATE_TOPICS:
        # Whoever makes it: compacted, or retention would drop what groups, transactions and sinks have committed.
        return controller.new_topic(topic.name)
    return NewTopic(
        topic.name,
        controller.new_uuid(),
        topic.num_partitions,
        topic.replication_factor,
        tuple((assignment.partition_index, tuple(assignment.broker_ids)) for assignment in topic.assignments),
        tuple((entry.name, entry.value) for entry in topic.configs),
    )


def _creation_refused(name: str, code: ErrorCode, message: str | None) -> Any:
    return CreateTopicsResponse.CreatableTopicResult(name=name, error_code=int(code), error_message=message, configs=[])


def _created(request: Request, wanted: Any, result: TopicCreated, described: Described) -> Any:
    if result.result.error is not ErrorCode.NONE:
        return _creation_refused(result.name, result.result.error, result.result.message)
    overrides = {entry.name: entry.value for entry in wanted.configs if entry.value is not None}
    configs = described.get(key := frozenset(overrides.items()))
    if configs is None:
        configs = described[key] = [
            CreateTopicsResponse.CreatableTopicConfigs(
                name=entry.name,
                value=entry.value,
                read_only=entry.read_only,
                config_source=entry.source,
                is_sensitive=entry.is_sensitive,
            )
            for entry in describe_topic(request.services.config, overrides)
        ]
    return CreateTopicsResponse.CreatableTopicResult(
        name=result.name,
        topic_id=NO_TOPIC_ID if request.body.validate_only else result.topic_id,
        error_message=None,
        num_partitions=result.partitions,
        replication_factor=result.replication_factor,
        configs=configs,
    )


def handle_delete(request: Request) -> None:
    """Delete topics by name or id; TOPIC_DELETION_DISABLED when `delete.topic.enable` is false."""
    body = request.body
    services = request.services
    refs = (
        [TopicRef(topic.name, topic.topic_id) for topic in body.topics]
        if request.version >= 6
        else [TopicRef(name) for name in body.topic_names]
    )
    if not services.config.boolean("delete.topic.enable"):
        _reply_deleted(request, [_deletion(ref, ErrorCode.TOPIC_DELETION_DISABLED, None) for ref in refs])
        return
    denied, allowed = [], []
    for ref in refs:
        name = ref.name if ref.name is not None else services.image.topic_name(ref.topic_id)
        if name is not None and request.deny_topics([name]):
            denied.append(_deletion(ref, ErrorCode.TOPIC_AUTHORIZATION_FAILED, None))
        else:
            allowed.append(ref)

    def answered(results: list[TopicDeleted] | DuramenError) -> None:
        if isinstance(results, DuramenError):
            entries = [_deletion(ref, results.code, str(results)) for ref in allowed]
        else:
            entries = [_deletion(TopicRef(r.name, r.topic_id), r.result.error, r.result.message) for r in results]
        _reply_deleted(request, denied + entries)

    services.controller.decide(DeleteTopics(tuple(allowed)), answered, makes_room=True)


def _deletion(ref: TopicRef, code: ErrorCode, message: str | None) -> Any:
    return DeleteTopicsResponse.DeletableTopicResult(
        name=ref.name, topic_id=ref.topic_id, error_code=int(code), error_message=message
    )


def _reply_deleted(request: Request, entries: list[Any]) -> None:
    request.reply(DeleteTopicsResponse.new(responses=entries))


def handle_create_partitions(request: Request) -> None:
    """Add partitions to topics; each topic is refused or taken alone."""
    body = request.body
    counts: dict[str, int] = {}
    for topic in body.topics:
        counts[topic.name] = counts.get(topic.name, 0) + 1
    refused = [(name, ErrorCode.INVALID_REQUEST, "the topic is named twice") for name, n in counts.items() if n > 1]
    refused += [
        (name, ErrorCode.TOPIC_AUTHORIZATION_FAILED, "not allowed to alter this topic")
        for name in counts
        if name in request.denied and counts[name] == 1
    ]
    wanted = [topic for topic in body.topics if counts[topic.name] == 1 and topic.name not in request.denied]

    def answered(results: Any) -> None:
        if isinstance(results, DuramenError):
            settled = [(topic.name, results.code, str(results)) for topic in wanted]
        else:
            settled = [(name, result.error, result.message) for name, result in results]
        request.reply(
            CreatePartitionsResponse.new(
                results=[
                    CreatePartitionsResponse.CreatePartitionsTopicResult(
                        name=name, error_code=int(code), error_message=message
                    )
                    for name, code, message in [*refused, *settled]
                ]
            )
        )

    topics = tuple(
        MorePartitions(
            topic.name,
            topic.count,
            None if topic.assignments is None else tuple(tuple(a.broker_ids) for a in topic.assignments),
        )
        for topic in wanted
    )
    request.services.controller.submit(CreatePartitions(topics, body.validate_only), answered)
