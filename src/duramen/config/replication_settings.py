"""The settings of replication: how many copies partitions have, how many of them count, how a broker fetches them."""

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
    Setting(
        "inter.broker.listener.name",
        "string",
        None,
        "Name of the listener on which brokers reach each other; the first one that is not a controller's when unset.",
    ),
    Setting(
        "replica.fetch.max.bytes",
        "int",
        "1048576",
        "Most bytes of one partition that a follower asks for at once; the first batch is always sent.",
        unit="bytes",
        low=0,
    ),
    Setting(
        "replica.fetch.response.max.bytes",
        "int",
        "10485760",
        "Most bytes in one answer to a follower; the first batch is always sent.",
        unit="bytes",
        low=0,
    ),
    Setting(
        "replica.fetch.wait.max.ms",
        "int",
        "500",
        "How long a leader keeps a follower's request while there is nothing to send.",
        unit="ms",
    ),
    Setting(
        "replica.fetch.min.bytes",
        "int",
        "1",
        "Bytes for which a leader answers a follower before that time is over.",
        unit="bytes",
    ),
    Setting(
        "replica.fetch.backoff.ms",
        "int",
        "50",
        "The wait of a follower before it asks again where a partition, or its leader, answered with an error; twice "
        "as long with each error that follows, up to a second. Kafka's default is 1000.",
        unit="ms",
        low=0,
    ),
)
