"""The settings of consumer groups (KIP-848); some of them a group may have of its own, within the bounds here."""

from __future__ import annotations

from duramen.config.setting import Setting

CONSUMER_GROUP_SETTINGS = (
    Setting(
        "group.coordinator.rebalance.protocols",
        "list",
        "classic,consumer,streams",
        "The protocols that groups may use, where the cluster's features have them. Share and streams groups are not "
        "served in this release.",
        allowed=("consumer", "classic", "share", "streams"),
    ),
    Setting(
        "group.consumer.session.timeout.ms",
        "int",
        "45000",
        "How long a member of a consumer group may be silent before it is fenced, unless its group says otherwise.",
        unit="ms",
        low=1,
    ),
    Setting(
        "group.consumer.min.session.timeout.ms",
        "int",
        "45000",
        "Shortest such time a group may have.",
        unit="ms",
        low=1,
    ),
    Setting(
        "group.consumer.max.session.timeout.ms", "int", "60000", "Longest such time a group may have.", unit="ms", low=1
    ),
    Setting(
        "group.consumer.heartbeat.interval.ms",
        "int",
        "5000",
        "How often members of consumer groups are told to beat, unless their group says otherwise.",
        unit="ms",
        low=1,
    ),
    Setting(
        "group.consumer.min.heartbeat.interval.ms",
        "int",
        "5000",
        "Shortest such interval of a group.",
        unit="ms",
        low=1,
    ),
    Setting(
        "group.consumer.max.heartbeat.interval.ms",
        "int",
        "15000",
        "Longest such interval of a group.",
        unit="ms",
        low=1,
    ),
    Setting(
        "group.consumer.assignment.interval.ms",
        "int",
        "1000",
        "Least time between two assignments of a consumer group: what changes meanwhile is taken together. 0: none.",
        unit="ms",
        low=0,
    ),
    Setting(
        "group.consumer.min.assignment.interval.ms", "int", "0", "Least such interval of a group.", unit="ms", low=0
    ),
    Setting(
        "group.consumer.max.assignment.interval.ms",
        "int",
        "15000",
        "Longest such interval of a group.",
        unit="ms",
        low=0,
    ),
    Setting("group.consumer.max.size", "int", "2147483647", "Members a consumer group may have.", low=1),
    Setting(
        "group.consumer.assignors",
        "list",
        "uniform,range",
        "Assignors that members may ask for; the first one where they ask for none.",
        allowed=("uniform", "range"),
    ),
    Setting(
        "group.consumer.migration.policy",
        "string",
        "bidirectional",
        "Whether a group changes its protocol while it has members: from classic to consumer (upgrade), back, when the "
        "last member of the consumer protocol is gone (downgrade), both, or neither.",
        allowed=("disabled", "downgrade", "upgrade", "bidirectional"),
        folded=True,
    ),
    Setting(
        "group.consumer.regex.refresh.interval.ms",
        "int",
        "600000",
        "How often the regular expressions that a group subscribes with are matched anew at the latest.",
        unit="ms",
        low=10_000,
        internal=True,
    ),
)
