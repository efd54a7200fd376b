"""Offsets by partition, as Spark keeps them in a checkpoint: the JSON of its own Kafka source, {"topic":{"0":23}}."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from duramen.errors import ConfigError
from duramen.model import TopicPartition

Positions = dict[TopicPartition, int]


def from_json(given: Mapping[str, Any]) -> Positions:
    """What a checkpoint holds, written by this source or by Spark's Kafka source; ConfigError for anything else."""
    try:
        return {
            TopicPartition(topic, int(partition)): int(offset)
            for topic, partitions in given.items()
            for partition, offset in partitions.items()
        }
    except (AttributeError, TypeError, ValueError):
        raise ConfigError(f"the checkpoint's offsets are none of a Kafka source: {given!r}") from None


def to_json(positions: Positions) -> dict[str, dict[str, int]]:
    """The same, topics and partitions in order, so that equal positions are equal text."""
    out: dict[str, dict[str, int]] = {}
    for tp in sorted(positions):
        out.setdefault(tp.topic, {})[str(tp.partition)] = positions[tp]
    return out
