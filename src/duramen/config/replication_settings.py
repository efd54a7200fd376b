"""The settings of how many copies partitions have, and how many of them count."""

from __future__ import annotations

from duramen.config.setting import Setting

REPLICATION_SETTINGS = (
    Setting(
        "default.replication.factor",
        "int",
        "1",
        "Copies of each partition of a topic created without a number; as many brokers have to be registered.",
    ),
    Setting(
        "offsets.topic.replication.factor",
        "short",
        "1",
        "Copies of each partition of __consumer_offsets, which the first group makes: until as many brokers are "
        "registered no group begins. Kafka's default is 3.",
        low=1,
    ),
    Setting(
        "min.insync.replicas",
        "int",
        "1",
        "In-sync copies that must exist for acks=all to be accepted, and for consumers to be shown more: one answer "
        "for all nodes, bounded by a topic's number of copies unless it is the topic's own.",
        low=1,
        update="cluster-wide",
    ),
)
