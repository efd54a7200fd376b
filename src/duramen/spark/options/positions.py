"""Offsets by partition, as Spark keeps them in a checkpoint: the JSON of its own Kafka source, {"topic":{"0":23}}.

Beside the partitions of a topic stands its id, under `topicId`, where the cluster has ids: by that a topic that was
deleted and made anew is known, whose offsets are other records. Checkpoints without ids hold as well.

The end of a query's first batch has the batch's beginning beside it, under `from`: Spark keeps the ends of batches
only, and asks for the initial offset anew when the first one has to be run again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from duramen.errors import ConfigError
from duramen.model import NO_TOPIC_ID, TopicId, TopicPartition, topic_id_from_text, topic_id_text

Positions = dict[TopicPartition, int]
TOPIC_ID = "topicId"
FROM = "from"
BESIDE = frozenset((TOPIC_ID, FROM))
"""What stands beside the partitions of a topic."""


def from_json(given: Mapping[str, Any]) -> Positions:
    """What a checkpoint holds, written by this source or by Spark's Kafka source; ConfigError for anything else."""
    try:
        return {
            TopicPartition(topic, int(partition)): int(offset)
            for topic, partitions in given.items()
            for partition, offset in partitions.items()
            if partition not in BESIDE
        }
    except (AttributeError, TypeError, ValueError):
        raise ConfigError(f"the checkpoint's offsets are none of a Kafka source: {given!r}") from None


def ids_from_json(given: Mapping[str, Any]) -> dict[str, TopicId]:
    """The topics' ids in what a checkpoint holds, of those topics that it names one for; ConfigError for no id."""
    try:
        return {topic: topic_id_from_text(found[TOPIC_ID]) for topic, found in given.items() if TOPIC_ID in found}
    except (TypeError, ValueError):
        raise ConfigError(f"the checkpoint's offsets name a topic id that is none: {given!r}") from None


def first_from_json(given: Mapping[str, Any]) -> Positions | None:
    """Where the batch began whose end this is, if it was a query's first one; ConfigError as `from_json`."""
    found = {topic: ends[FROM] for topic, ends in given.items() if FROM in ends}
    return from_json(found) if found else None


def to_json(
    positions: Positions, ids: Mapping[str, TopicId] | None = None, first: Positions | None = None
) -> dict[str, dict[str, Any]]:
    """The same, topics and partitions in order, so that equal positions are equal text.

    first: where the batch begins that ends there, of a query's first one.
    """
    out: dict[str, dict[str, Any]] = {}
    for tp in sorted(positions):
        out.setdefault(tp.topic, {})[str(tp.partition)] = positions[tp]
    for topic, found in out.items():
        if (topic_id := (ids or {}).get(topic, NO_TOPIC_ID)) != NO_TOPIC_ID:
            found[TOPIC_ID] = topic_id_text(topic_id)
    for topic, found in to_json(first).items() if first else ():
        out[topic][FROM] = found
    return out
