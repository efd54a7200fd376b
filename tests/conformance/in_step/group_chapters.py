"""Chapters of consumer groups: members that join, beat, lag behind and leave, their offsets, the group's settings."""

from __future__ import annotations

import struct
from typing import Any, ClassVar

from tests.conformance.in_step.chapter import Chapter
from tests.conformance.in_step.side import Own, Side, Spec

COMMIT, FETCH, JOIN, BEAT, LEAVE, SYNC, DESCRIBE_OLD, LIST, DELETE, OFFSET_DELETE = 8, 9, 11, 12, 13, 14, 15, 16, 42, 47
HEARTBEAT, DESCRIBE, CONFIGS, ALTER_CONFIGS, CONFIG_RESOURCES = 68, 69, 32, 44, 74
GROUP_RESOURCE = 32
UNKNOWN_TOPIC = b"\x01" * 16
SETTINGS = (
    "consumer.session.timeout.ms",
    "consumer.heartbeat.interval.ms",
    "consumer.assignment.interval.ms",
    "consumer.nonsense",
    "retention.ms",
    "",
)
VALUES = ("45000", "50000", "60000", "60001", "5000", "15000", "100", "0", "-1", "x", "", None)


class Member:
    """A member of a group, as it knows itself."""

    def __init__(self, group: str, id: str) -> None:
        self.group = group
        self.id = id
        self.epoch = 0
        self.instance: str | None = None
        self.assigned: dict[str, dict[str, list[int]]] = {}
        """By side, by topic."""

    def owned(self, side: Side) -> list[Spec]:
        mine = self.assigned.get(side.name, {})
        return [{"topic_id": side.topics[topic], "partitions": indexes} for topic, indexes in mine.items()]


class Groups(Chapter):
    """See the module."""

    topics: ClassVar = {"a": 3, "b": 1}
    are_static = False

    def begin(self) -> None:
        super().begin()
        self.groups = [self.own("g"), self.own("h")]
        self.members = [Member(group, f"m{number}-{self.name}") for group in self.groups for number in range(3)]
        self.assignor = "range" if self.are_static or self.maybe(0.5) else None
        self.old: dict[str, tuple[str, int]] = {}
        """Classic members: the symbol of the id and the generation, by group."""

    def step(self) -> None:
        steps = (
            (self.random_heartbeat, 40), (self.random_commit, 12), (self.random_fetch, 10), (self.random_describe, 6),
            (self.random_describe_old, 3), (self.random_list, 3), (self.random_delete, 2),
            (self.random_offset_delete, 2),
            (self.random_alter, 4), (self.random_configs, 4), (self.random_config_resources, 1), (self.random_join, 3),
            (self.random_sync, 2), (self.random_beat, 3), (self.random_leave, 1.5),
        )  # fmt: skip
        self.random.choices([step for step, _ in steps], [weight for _, weight in steps])[0]()

    def a_group(self) -> str:
        return self.random.choices([*self.groups, self.own("unknown"), ""], [20, 10, 1, 0.5])[0]

    def a_topic(self) -> str:
        return self.random.choices([self.own("a"), self.own("b"), self.own("absent")], [10, 5, 1])[0]

    def some_topics(self, partitions: str, of: Any = None) -> list[Spec]:
        found: dict[str, set[int]] = {}
        for _ in range(self.random.choices([0, 1, 2, 3], [0.3, 10, 4, 2])[0]):
            found.setdefault(self.a_topic(), set()).add(self.random.choices([0, 1, 7], [10, 4, 1])[0])
        many = []
        for topic, indexes in found.items():
            id = Own(f"id of {topic}", lambda side, topic=topic: side.topics.get(topic, UNKNOWN_TOPIC))
            listed = [of(index) for index in indexes] if of else list(indexes)
            many.append({"name": topic, "topic_id": id, partitions: listed})
        return many

    # The new protocol.

    def random_heartbeat(self) -> None:
        random = self.random
        version = random.choices([1, 0], [8, 1])[0]
        member = random.choice(self.members[:3] if self.maybe(0.7) else self.members)
        spec: Spec = {"group_id": member.group, "member_id": member.id}
        kind = random.random()
        if member.epoch == 0 or kind < (0.01 if self.are_static else 0.05):  # joins, or joins again
            spec |= {
                "member_epoch": 0,
                "rebalance_timeout_ms": random.choices([300_000, 60_000, 0, -1], [20, 3, 0.2, 0.5])[0],
                "subscribed_topic_names": self.names(),
                "topic_partitions": [],
            }
            if version == 1 and self.maybe(0.15):
                spec["subscribed_topic_regex"] = self.an_expression()
            if self.are_static and not self.maybe(0.03):
                spec["instance_id"] = "i" + member.id
            elif not self.are_static and self.maybe(0.15):
                spec["instance_id"] = self.random.choice(("i", "j", ""))
            spec["server_assignor"] = self.assignor
            if self.maybe(0 if self.are_static else 0.05):
                spec["server_assignor"] = self.random.choice((None, "range", "uniform", "nonsense", ""))
            if self.maybe(0.05):
                spec["rack_id"] = self.random.choice(("", "r"))
            if self.maybe(0.05):
                spec.pop(random.choice(["rebalance_timeout_ms", "subscribed_topic_names", "topic_partitions"]))
        elif kind < 0.12:  # leaves
            spec["member_epoch"] = random.choice((-1, -1, -2, -3))
            if member.instance is not None:
                spec["instance_id"] = member.instance
        else:
            spec["member_epoch"] = member.epoch
            if self.maybe(0.01 if self.are_static else 0.07):
                spec["member_epoch"] = member.epoch + random.choice((-1, 1, 5))
            if self.maybe(0.6):
                spec["topic_partitions"] = Own("what it has", member.owned) if not self.maybe(0.1) else []
            if self.maybe(0.15):
                spec["subscribed_topic_names"] = self.names()
            if version == 1 and self.maybe(0.05):
                spec["subscribed_topic_regex"] = self.an_expression()
            if self.maybe(0.05):
                spec["rebalance_timeout_ms"] = 200_000
            if self.maybe(0.04):
                spec["server_assignor"] = self.random.choice((self.assignor, "nonsense"))
            if member.instance is not None and self.maybe(0.9):
                spec["instance_id"] = member.instance
            if self.maybe(0.03):
                spec["member_id"] = random.choice(("", self.own("stranger")))
        if self.maybe(0.02):
            spec["group_id"] = self.a_group()
        answers = self.ask(HEARTBEAT, version, spec)
        self.heed(member, spec, answers)

    def an_expression(self) -> str:
        """Resolved a moment later, which is another one on each side."""
        return self.random.choice(
            ("(", "", "") if self.are_static else (f"{self.name}-[ab]", f"{self.name}-a", "(", "")
        )

    def names(self) -> list[str]:
        names = [self.own("a"), self.own("b"), self.own("absent")]
        return self.random.sample(names, self.random.choices([0, 1, 2, 3], [0.3, 6, 6, 1])[0])

    def heed(self, member: Member, spec: Spec, answers: dict[str, Any]) -> None:
        first = answers[self.sides[0].name]
        if first.error_code:
            if first.error_code in (25, 110, 69, 82):
                member.epoch, member.assigned, member.instance = 0, {}, None
            return
        if spec["group_id"] != member.group or spec["member_id"] != member.id:
            return
        member.epoch = max(0, first.member_epoch)
        if spec["member_epoch"] == 0:
            member.instance = spec.get("instance_id")
        for side in self.sides:
            assignment = answers[side.name].assignment
            if assignment is not None:
                names = {id: topic for topic, id in side.topics.items()}
                member.assigned[side.name] = {
                    names[each.topic_id]: list(each.partitions) for each in assignment.topic_partitions
                }

    # Offsets.

    def as_member(self, group: str) -> tuple[str, int]:
        """A member id and epoch: right, wrong, or nobody's."""
        mine = [member for member in self.members if member.group == group]
        kind = self.random.random()
        if mine and kind < 0.7:
            member = self.random.choice(mine)
            return member.id, member.epoch + (self.random.choice((-1, 1)) if kind < 0.15 else 0)
        if kind < 0.75:
            return "", self.random.choice((-1, 0, 3))
        return ("", -1) if kind < 0.95 else (self.own("stranger"), 1)

    def random_commit(self) -> None:
        group = self.a_group()
        id, epoch = self.as_member(group)
        topics = self.some_topics("partitions", self.position)
        spec = {"group_id": group, "generation_id_or_member_epoch": epoch, "member_id": id, "topics": topics}
        self.ask(COMMIT, self.random.choices([2, 5, 8, 9, 10], [1, 1, 1, 5, 5])[0], spec)

    def position(self, index: int) -> Spec:
        offset = self.random.choice((0, 1, 50))
        return {
            "partition_index": index,
            "committed_offset": offset,
            "committed_metadata": self.random.choice(("", "m")),
        }

    def random_fetch(self) -> None:
        version = self.random.choices([7, 8, 9, 10], [1, 1, 4, 4])[0]
        group = self.a_group()
        topics = None if self.maybe(0.4) else self.some_topics("partition_indexes")
        spec: Spec = {"require_stable": self.maybe(0.5)}
        if version == 7:
            spec |= {"group_id": group, "topics": topics}
        else:
            id, epoch = self.as_member(group)
            who = {"member_id": id or self.random.choice((None, "")), "member_epoch": epoch}
            spec["groups"] = [{"group_id": group, **who, "topics": topics}]
        self.ask(FETCH, version, spec)

    def random_offset_delete(self) -> None:
        topics = self.some_topics("partitions", lambda index: {"partition_index": index})
        self.ask(OFFSET_DELETE, 0, {"group_id": self.a_group(), "topics": topics})

    # Looks.

    def random_describe(self) -> None:
        names = list({self.a_group(): None for _ in range(self.random.randint(1, 2))})
        self.ask(
            DESCRIBE, self.random.randint(0, 1), {"group_ids": names, "include_authorized_operations": self.maybe(0.2)}
        )

    def random_describe_old(self) -> None:
        self.ask(DESCRIBE_OLD, self.random.randint(0, 6), {"groups": [self.a_group()]})

    def random_list(self) -> None:
        states = ("Stable", "Empty", "Reconciling", "Assigning", "nonsense", "stable")
        types = ("consumer", "classic", "Consumer", "nonsense", "share")
        spec = {
            "states_filter": self.random.sample(states, self.random.choice((0, 0, 1, 2))),
            "types_filter": self.random.sample(types, self.random.choice((0, 0, 1, 2))),
        }
        self.ask(LIST, 5, spec)

    def random_delete(self) -> None:
        self.ask(DELETE, self.random.randint(0, 2), {"groups_names": [self.a_group()]})

    # Settings.

    def random_alter(self) -> None:
        settings = (
            self.random.sample(SETTINGS[:3], self.random.randint(1, 2))
            if self.maybe(0.85)
            else [self.random.choice(SETTINGS)]
        )
        configs = [
            {
                "name": name,
                "config_operation": self.random.choices([0, 1, 2, 3], [20, 4, 1, 1])[0],
                "value": self.random.choice(VALUES),
            }
            for name in settings
        ]
        resource = {"resource_type": GROUP_RESOURCE, "resource_name": self.a_group(), "configs": configs}
        self.ask(ALTER_CONFIGS, self.random.randint(0, 1), {"resources": [resource], "validate_only": self.maybe(0.3)})

    def random_configs(self) -> None:
        keys = self.random.sample(SETTINGS, self.random.randint(1, 3))
        resource = {"resource_type": GROUP_RESOURCE, "resource_name": self.a_group(), "configuration_keys": keys}
        self.ask(CONFIGS, self.random.randint(1, 4), {"resources": [resource], "include_synonyms": self.maybe(0.5)})

    def random_config_resources(self) -> None:
        kinds = self.random.choice(([GROUP_RESOURCE], [2], [4], [7], [1]))
        self.ask(CONFIG_RESOURCES, 1, {"resource_types": kinds})

    # The old protocol on the same groups: one member at a time, for a Join waits for all others.

    def who(self, group: str) -> Spec:
        if group in self.old and not self.maybe(0.1):
            symbol, _ = self.old[group]
            return {"member_id": Own(symbol, lambda side: side.members.get(symbol, symbol))}
        return {"member_id": self.random.choice(("", self.own("stranger")))}

    def generation(self, group: str) -> int:
        known = self.old[group][1] if group in self.old else 1
        return known + self.random.choices([0, 1, -1], [10, 1, 1])[0]

    def random_join(self) -> None:
        group = self.a_group()
        if any(member.epoch for member in self.members if member.group == group):
            return  # it would wait for members that only beat when they are chosen
        topics = [self.own("a").encode()]
        metadata = (
            struct.pack(">hi", 0, len(topics))
            + b"".join(struct.pack(">h", len(each)) + each for each in topics)
            + struct.pack(">i", -1)
        )
        spec = {
            "group_id": group,
            "session_timeout_ms": self.random.choices([45_000, 1, 10_000_000], [20, 1, 1])[0],
            "rebalance_timeout_ms": 60_000,
            **self.who(group),
            "protocol_type": self.random.choices(["consumer", "other", ""], [20, 1, 1])[0],
            "protocols": [{"name": "range", "metadata": metadata}] if not self.maybe(0.05) else [],
        }
        version = self.random.choices([9, 5, 3], [6, 1, 1])[0]
        answers = self.ask(JOIN, version, spec)
        first = answers[self.sides[0].name]
        if first.error_code in (0, 79):
            symbol = f"classic of {group}"
            for side in self.sides:
                side.members[symbol] = answers[side.name].member_id
            self.old[group] = (symbol, first.generation_id)

    def random_sync(self) -> None:
        group = self.a_group()
        spec = {"group_id": group, "generation_id": self.generation(group), **self.who(group), "assignments": []}
        self.ask(SYNC, self.random.randint(0, 4), spec)

    def random_beat(self) -> None:
        group = self.a_group()
        self.ask(
            BEAT,
            self.random.randint(0, 4),
            {"group_id": group, "generation_id": self.generation(group), **self.who(group)},
        )

    def random_leave(self) -> None:
        group = self.a_group()
        version = self.random.randint(0, 5)
        who = self.who(group)
        spec = {"group_id": group, **({"members": [who]} if version >= 3 else who)}
        self.ask(LEAVE, version, spec)
        self.old.pop(group, None)


class StaticGroups(Groups):
    """The same with static members, of whom the range assignor leaves no doubt who gets what."""

    are_static = True
