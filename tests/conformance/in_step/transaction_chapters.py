"""Chapters of transactions: producers and zombies, partitions, offsets, markers, and all that looks at them."""

from __future__ import annotations

import time
from typing import Any, ClassVar, NamedTuple

from tests.conformance.in_step.chapter import Chapter, Ended
from tests.conformance.in_step.side import Own, Side, Spec

from duramen.wire.batch import build_batch

PRODUCE, LIST_OFFSETS, OFFSET_COMMIT, OFFSET_FETCH, FIND = 0, 2, 8, 9, 10
INIT, ADD, ADD_OFFSETS, END, MARKERS, COMMIT_OFFSETS, PRODUCERS, DESCRIBE, LIST = 22, 24, 25, 26, 27, 28, 61, 65, 66
FENCED = (47, 90)
NOW = int(time.time() * 1000)
STRANGER = 1 << 40


class Producer(NamedTuple):
    """A producer id and epoch, as each side has told them; the id it was given for."""

    transactional_id: str
    name: str
    ids: dict[str, int]
    epoch: int

    def id_of(self, side: Side) -> int:
        return self.ids[side.name]


NOBODY = Producer("", "none", {}, -1)


class Transactions(Chapter):
    """See the module."""

    topics: ClassVar = {"a": 2, "b": 1}
    markers = 0

    def begin(self) -> None:
        super().begin()
        self.ids = [self.own("x"), self.own("y")]
        self.groups = [self.own("g"), self.own("h")]
        self.told: list[Producer] = []
        self.sequences: dict[tuple[str, int, str, int], int] = {}
        for id in self.ids:
            self.init(self.random.randint(0, 5), id, 60_000)

    def step(self) -> None:
        steps = (
            (self.random_init, 6), (self.random_add, 14), (self.random_add_by_broker, 5), (self.random_produce, 22),
            (self.random_end, 16), (self.random_add_offsets, 7), (self.random_commit, 10),
            (self.random_markers, self.markers),
            (self.random_describe, 3), (self.random_list, 3), (self.random_producers, 5), (self.random_fetch, 7),
            (self.random_find, 2), (self.random_offsets, 5), (self.random_plain_commit, 2),
        )  # fmt: skip
        self.random.choices([step for step, _ in steps], [weight for _, weight in steps])[0]()

    # What is chosen.

    def an_id(self) -> str:
        return self.random.choices([*self.ids, self.own("unknown"), ""], [10, 6, 1, 1])[0]

    def a_topic(self) -> str:
        names = [self.own("a"), self.own("b"), self.own("absent"), "__consumer_offsets", "../no", ""]
        return self.random.choices(names, [40, 20, 2, 0.5, 0.5, 0.3])[0]

    def a_partition(self) -> int:
        return self.random.choices([0, 1, 7, -1], [20, 8, 1, 0.5])[0]

    def a_producer(self, transactional_id: str) -> Producer:
        """Mostly the latest of this id; else an older one, another id's, or none that there is."""
        own = [each for each in self.told if each.transactional_id == transactional_id]
        kind = self.random.random()
        if own and kind < 0.8:
            return own[-1]
        if self.told and kind < 0.9:
            return self.random.choice(self.told)
        if own and kind < 0.96:
            return own[-1]._replace(epoch=max(-1, min(32767, own[-1].epoch + self.random.choice((-1, 1, 2)))))
        if kind < 0.98:
            return Producer(transactional_id, "a stranger", {side.name: STRANGER for side in self.sides}, 0)
        return NOBODY

    def names_of(self, producer: Producer, prefix: str = "") -> Spec:
        id = Own(producer.name, producer.id_of) if producer.ids else -1
        return {f"{prefix}producer_id": id, f"{prefix}producer_epoch": producer.epoch}

    def some_topics(self, name: str = "partitions") -> list[Spec]:
        """None named twice: Kafka's handlers each do something else with that, down to never answering."""
        found: dict[str, set[int]] = {}
        for _ in range(self.random.choices([0, 1, 2, 3], [0.5, 10, 4, 2])[0]):
            found.setdefault(self.a_topic(), set()).add(self.a_partition())
        return [{"name": topic, name: list(partitions)} for topic, partitions in found.items()]

    def some_ids(self, most: int) -> list[str]:
        return list({self.an_id(): None for _ in range(self.random.randint(0 if self.maybe(0.1) else 1, most))})

    # What is asked.

    def random_init(self) -> None:
        random = self.random
        id: str | None = None if self.maybe(0.1) else self.an_id()
        timeout = random.choices([60_000, 900_000, 0, -1, 900_001, 2**31 - 1], [30, 2, 1, 1, 1, 1])[0]
        own = self.names_of(self.a_producer(id or "")) if self.maybe(0.4) else {}
        if own and self.maybe(0.1):
            own[random.choice(list(own))] = -1
        self.init(random.randint(0, 5), id, timeout, own)

    def init(self, version: int, id: str | None, timeout: int, own: Spec | None = None) -> None:
        spec = {"transactional_id": id, "transaction_timeout_ms": timeout, **(own or {})}
        self.heed(id or "", self.ask(INIT, version, spec), bool(own))

    def heed(self, id: str, answers: dict[str, Any], told: bool = False) -> None:
        """Remember a producer that was told."""
        first = next(iter(answers.values()))
        if first.error_code in FENCED and told:
            raise Ended  # in Kafka this may have ended the transaction of the life that came after (decision 0007)
        if first.error_code == 0 and getattr(first, "producer_id", -1) >= 0:
            ids = {name: answer.producer_id for name, answer in answers.items()}
            side = self.sides[0]
            name = str(side.producer_name(ids[side.name]))
            producer = Producer(id, name, ids, first.producer_epoch)
            if producer not in self.told or self.told[-1] != producer:
                self.told.append(producer)
        if self.await_markers(*self.ids):
            raise Ended  # a partition knows a later epoch: in Kafka the transaction hangs (decision 0007)

    def random_add(self) -> None:
        id = self.an_id()
        producer = self.names_of(self.a_producer(id), "v3_and_below_")
        topics = self.some_topics()
        spec = {"v3_and_below_transactional_id": id, **producer, "v3_and_below_topics": topics}
        self.ask(ADD, self.random.randint(0, 3), spec)

    def random_add_by_broker(self) -> None:
        found = []
        for id in self.some_ids(2):
            found.append(
                {
                    "transactional_id": id,
                    **self.names_of(self.a_producer(id)),
                    "verify_only": self.maybe(0.5),
                    "topics": self.some_topics(),
                }
            )
        self.ask(ADD, self.random.randint(4, 5), {"transactions": found})

    def random_end(self) -> None:
        id = self.an_id()
        spec = {"transactional_id": id, **self.names_of(self.a_producer(id)), "committed": self.maybe(0.6)}
        self.heed(id, self.ask(END, self.random.choice((0, 1, 2, 3, 4, 5, 5, 5, 5)), spec))

    def a_group(self) -> str:
        return self.random.choices([*self.groups, ""], [10, 6, 0.5])[0]

    def random_add_offsets(self) -> None:
        id = self.an_id()
        spec = {"transactional_id": id, **self.names_of(self.a_producer(id)), "group_id": self.a_group()}
        self.ask(ADD_OFFSETS, self.random.randint(0, 4), spec)

    def positions(self) -> list[Spec]:
        topics = self.some_topics()
        for topic in topics:
            topic["partitions"] = [
                {
                    "partition_index": partition,
                    "committed_offset": self.random.choice((0, 1, 5, 100)),
                    "committed_leader_epoch": self.random.choice((-1, 0)),
                    "committed_metadata": self.random.choice(("", "m", None)),
                }
                for partition in topic["partitions"]
            ]
        return topics

    def random_commit(self) -> None:
        id = self.an_id()
        member: Spec = {}
        if self.maybe(0.2):
            member = {
                "generation_id": self.random.choice((-1, 0, 3)),
                "member_id": self.random.choice(("", "m")),
                "group_instance_id": self.random.choice((None, None, "i")),
            }
        spec = {
            "transactional_id": id,
            "group_id": self.a_group(),
            **self.names_of(self.a_producer(id)),
            **member,
            "topics": self.positions(),
        }
        self.ask(COMMIT_OFFSETS, self.random.randint(0 if not member else 3, 5), spec)

    def random_plain_commit(self) -> None:
        spec = {
            "group_id": self.a_group(),
            "generation_id_or_member_epoch": -1,
            "member_id": "",
            "topics": self.positions(),
        }
        self.ask(OFFSET_COMMIT, self.random.randint(2, 9), spec)

    def random_fetch(self) -> None:
        version = self.random.randint(7, 9)
        topics = None if self.maybe(0.4) else self.some_topics("partition_indexes")
        spec: Spec = {"require_stable": self.maybe(0.7)}
        if version == 7:
            spec |= {"group_id": self.a_group(), "topics": topics}
        else:
            spec["groups"] = [{"group_id": group, "topics": topics} for group in self.random.sample(self.groups, 1)]
        self.ask(OFFSET_FETCH, version, spec)

    def random_markers(self) -> None:
        version = self.random.randint(1, 2)
        found = []
        if not self.maybe(0.03):  # of several, with a partition that is not there, Kafka answers none
            found.append(
                {
                    **self.names_of(self.a_producer(self.an_id())),
                    "transaction_result": self.maybe(0.5),
                    "topics": self.some_topics("partition_indexes"),
                    "coordinator_epoch": self.random.choice((0, 0, 1, -1)),
                    "transaction_version": self.random.choice((0, 1, 2)),
                }
            )
        self.ask(MARKERS, version, {"markers": found})

    def random_describe(self) -> None:
        self.ask(DESCRIBE, 0, {"transactional_ids": self.some_ids(3)})

    def random_list(self) -> None:
        states = ["Empty", "Ongoing", "CompleteCommit", "CompleteAbort", "PrepareCommit", "Dead", "Nonsense", "ongoing"]
        pattern = self.random.choice((self.name + ".*", self.name + ".*", self.own("x"), "(", self.name + "-(x|y)"))
        spec = {
            "state_filters": self.random.sample(states, self.random.choice((0, 0, 1, 2))),
            "producer_id_filters": [],
            "duration_filter": self.random.choice((-1, 0, 3_600_000, -2)),
            "transactional_id_pattern": pattern,
        }
        self.ask(LIST, 2, spec)

    def random_producers(self) -> None:
        """Not of groups' offsets: others' producers are there, too."""
        topics = [each for each in self.some_topics("partition_indexes") if each["name"] != "__consumer_offsets"]
        self.ask(PRODUCERS, 0, {"topics": topics})

    def random_find(self) -> None:
        keys = self.some_ids(2)
        kind = self.random.choices([1, 0, 2, 3, -1], [8, 2, 1, 1, 1])[0]
        version = self.random.randint(0, 6)
        spec: Spec = {"key": (keys or [""])[0]} if version < 4 else {"coordinator_keys": keys}
        self.ask(FIND, version, {**spec, **({"key_type": kind} if version else {})})

    def random_offsets(self) -> None:
        topics = self.some_topics()
        for topic in topics:
            times = [self.random.choice((-1, -1, -2, 0, -3)) for _ in topic["partitions"]]
            topic["partitions"] = [
                {"partition_index": partition, "timestamp": moment}
                for partition, moment in zip(topic["partitions"], times, strict=True)
            ]
        isolation = self.random.randint(0, 1)
        self.ask(
            LIST_OFFSETS, self.random.randint(7, 10), {"replica_id": -1, "isolation_level": isolation, "topics": topics}
        )

    def random_produce(self) -> None:
        id = self.an_id()
        producer = self.a_producer(id)
        version = self.random.randint(3, 13)
        topic, partition = self.a_topic(), self.a_partition()
        if version == 13 and topic not in self.sides[0].topics:
            version = 12
        count = self.random.randint(1, 2)
        place = (producer.name, producer.epoch, topic, partition)
        sequence = self.sequences.get(place, 0)
        if self.maybe(0.08):
            sequence = max(0, sequence + self.random.choice((-2, -1, 1, 5)))
        transactional = not self.maybe(0.06)

        def records(side: Side) -> bytearray:
            return build_batch(
                [(None, b"v", (), NOW)] * count,
                producer_id=producer.id_of(side) if producer.ids else -1,
                producer_epoch=producer.epoch,
                base_sequence=sequence if producer.ids else -1,
                transactional=transactional,
            )

        kind = "transactional " if transactional else ""
        says = f"{kind}{count} of {producer.name} epoch {producer.epoch} from {sequence}"
        data = [{"index": partition, "records": Own(says, records)}]
        name: Spec = {"topic_id": Own(topic, lambda side: side.topics[topic])} if version == 13 else {"name": topic}
        named: str | None = id if not self.maybe(0.06) else self.random.choice((None, "", self.an_id()))
        spec = {
            "transactional_id": named,
            "acks": self.random.choices([-1, 1], [30, 1])[0],
            "timeout_ms": 5_000,
            "topic_data": [{**name, "partition_data": data}],
        }
        answer = self.ask(PRODUCE, version, spec)[self.sides[0].name]
        if answer.responses and answer.responses[0].partition_responses[0].error_code == 0:
            self.sequences[place] = max(self.sequences.get(place, 0), sequence + count)


class Markers(Transactions):
    """The same, with markers that no coordinator has sent."""

    markers = 8
