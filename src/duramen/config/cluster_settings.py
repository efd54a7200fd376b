"""The settings of nodes that are one cluster: how they hear of each other."""

from __future__ import annotations

from duramen.config.setting import Setting

CLUSTER_SETTINGS = (
    Setting(
        "broker.session.timeout.ms",
        "int",
        "3000",
        "How long a broker may be silent before the controller lets others lead what it led. Kafka's default is 9000.",
        unit="ms",
        low=1,
    ),
    Setting(
        "broker.heartbeat.interval.ms",
        "int",
        "500",
        "How often a broker tells the controller that it lives, half of the session at most. Kafka's default is 2000.",
        unit="ms",
        low=1,
    ),
    Setting(
        "replica.lag.time.max.ms",
        "long",
        "30000",
        "A replica that has lacked a record for this long is not in sync any more.",
        unit="ms",
        low=1,
    ),
    Setting(
        "controlled.shutdown.enable",
        "boolean",
        "true",
        "Whether a broker that stops hands over what it leads first, and waits until others lead it.",
    ),
    Setting(
        "auto.leader.rebalance.enable",
        "boolean",
        "true",
        "Whether the controller lets the first replica of each partition lead again when it is back in sync.",
    ),
    Setting(
        "leader.imbalance.check.interval.seconds",
        "long",
        "300",
        "How often the controller looks for partitions that are led by another one than their first replica.",
        unit="s",
        low=1,
    ),
)
