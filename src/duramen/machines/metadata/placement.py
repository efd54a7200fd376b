"""Places new partitions: leaders even over the brokers that serve, copies in as many racks as can be (KIP-36, KIP-841).

Every registered broker can get a copy; one that is fenced comes last and never leads. One dead node of three must not
keep a topic of three copies from being made: its copy catches up when it is back.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import zip_longest
from typing import Final

from duramen.errors import ErrorCode, KafkaError
from duramen.machines.metadata.image import BrokerImage, MetadataImage
from duramen.model import TopicId

_NO_RACK: Final = ""
"""Where brokers that name no rack are, all in one."""


def place(image: MetadataImage, topic_id: TopicId, count: int, copies: int, first: int = 0) -> list[tuple[int, ...]]:
    """Nodes for `count` new partitions, by preference; first: the index of the first of them.

    The topic's id says where it begins, so that topics of one partition do not all begin at one broker.
    INVALID_REPLICATION_FACTOR with fewer registered brokers than copies, or where all are fenced.
    """
    brokers = image.brokers.values()
    serving = _by_turns(broker for broker in brokers if broker.active)
    waiting = _by_turns(broker for broker in brokers if not broker.active)
    if copies > len(serving) + len(waiting):
        raise _unplaceable(
            copies,
            f"The target replication factor of {copies} cannot be reached because only {len(brokers)} broker(s) "
            "are registered.",
        )
    if not serving:
        raise _unplaceable(copies, "All brokers are currently fenced.")
    start = int.from_bytes(topic_id[-4:], "big")
    return [_one(serving, waiting, start, first + index, copies) for index in range(count)]


def _unplaceable(copies: int, why: str) -> KafkaError:
    return KafkaError(
        ErrorCode.INVALID_REPLICATION_FACTOR, f"Unable to replicate the partition {copies} time(s): {why}"
    )


def _by_turns(brokers: Iterable[BrokerImage]) -> list[BrokerImage]:
    """One of each rack after the other, so that neighbours are in different ones where that can be."""
    racks: dict[str, list[BrokerImage]] = {}
    for broker in sorted(brokers, key=lambda each: (each.rack or _NO_RACK, each.id)):
        racks.setdefault(broker.rack or _NO_RACK, []).append(broker)
    return [broker for turn in zip_longest(*racks.values()) for broker in turn if broker is not None]


def _one(
    serving: Sequence[BrokerImage], waiting: Sequence[BrokerImage], start: int, index: int, copies: int
) -> tuple[int, ...]:
    """The nodes of one partition: its leader, then whoever comes next, one of each rack before a second of any."""
    turn, leader = divmod(start % len(serving) + index, len(serving))
    chosen = [serving[leader]]
    used = {chosen[0].rack or _NO_RACK}
    # Each turn around the brokers, a leader's followers begin one further on: what it led is spread when it dies.
    order = [*_after(serving, leader, turn), *_rotated(waiting, start + index)]
    while len(chosen) < copies:
        best = next((each for each in order if (each.rack or _NO_RACK) not in used), None)
        if best is None:
            used.clear()  # every rack has as many as the others, or no more brokers
            continue
        order.remove(best)
        chosen.append(best)
        used.add(best.rack or _NO_RACK)
    return tuple(broker.id for broker in sorted(chosen, key=lambda each: not each.active))


def _after(brokers: Sequence[BrokerImage], leader: int, turn: int) -> Iterator[BrokerImage]:
    """All but the leader, beginning with the one behind it and `turn` places on."""
    others = len(brokers) - 1
    return (brokers[(leader + 1 + (turn + step) % others) % len(brokers)] for step in range(others))


def _rotated(brokers: Sequence[BrokerImage], places: int) -> Iterator[BrokerImage]:
    return (brokers[(places + step) % len(brokers)] for step in range(len(brokers)))
