"""The settings of transactions: their coordinators' topic, how long they may last, who verifies what is written."""

from __future__ import annotations

from duramen.config.setting import PARTITIONS_MAX, Setting

TRANSACTION_SETTINGS = (
    Setting(
        "transaction.state.log.num.partitions",
        "int",
        "50",
        "Partitions of __transaction_state; must not change once the topic exists.",
        low=1,
        high=PARTITIONS_MAX,
    ),
    Setting(
        "transaction.state.log.replication.factor",
        "short",
        "1",
        "Copies of each partition of __transaction_state, which the first transactional producer makes: until as many "
        "brokers are registered no transaction begins. Kafka's default is 3.",
        low=1,
    ),
    Setting(
        "transaction.state.log.min.isr",
        "int",
        "1",
        "The min.insync.replicas that __transaction_state is born with. Kafka's default is 2.",
        low=1,
    ),
    Setting(
        "transaction.state.log.segment.bytes",
        "int",
        "104857600",
        "Segment size of __transaction_state.",
        unit="bytes",
        low=1,
    ),
    Setting(
        "transaction.max.timeout.ms",
        "int",
        "900000",
        "Longest time-out that a transactional producer may ask for.",
        unit="ms",
        low=1,
    ),
    Setting(
        "transactional.id.expiration.ms",
        "int",
        "604800000",
        "How long a transactional id without an open transaction is remembered after its last change.",
        unit="ms",
        low=1,
    ),
    Setting(
        "transaction.abort.timed.out.transaction.cleanup.interval.ms",
        "int",
        "10000",
        "How often transactions that have outlived their time-out are looked for, and aborted.",
        unit="ms",
        low=1,
    ),
    Setting(
        "transaction.remove.expired.transaction.cleanup.interval.ms",
        "int",
        "3600000",
        "How often transactional ids that have expired are looked for.",
        unit="ms",
        low=1,
    ),
    Setting(
        "transaction.partition.verification.enable",
        "boolean",
        "true",
        "Whether the first batch that a transaction brings to a partition waits for the coordinator's word that the "
        "transaction has that partition. Producers of the second generation add the partition by the same question, "
        "and always wait.",
        update="cluster-wide",
    ),
    Setting(
        "add.partitions.to.txn.retry.backoff.ms",
        "int",
        "20",
        "The wait before a partition is added again whose transaction before is still being ended.",
        unit="ms",
        low=1,
    ),
    Setting(
        "add.partitions.to.txn.retry.backoff.max.ms",
        "int",
        "100",
        "How long that goes on before the producer is told to try again itself.",
        unit="ms",
        low=0,
    ),
)
