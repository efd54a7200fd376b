"""What is answered differently on purpose: each with its row of decision 0007, or the flaw of Kafka's that it is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from tests.conformance.in_step.chapter import Asked, codes

PRODUCE, LIST_OFFSETS, INIT, ADD, END, COMMIT_OFFSETS = 0, 2, 22, 24, 26, 28
DESCRIBE_GROUPS, LIST_GROUPS, ALTER_CONFIGS, HEARTBEAT, DESCRIBE = 15, 16, 44, 68, 69
UNKNOWN_SERVER_ERROR = -1
UNSUPPORTED_VERSION = 35


class Known(NamedTuple):
    """why: as in the decision. is_it: of a request that was answered differently."""

    why: str
    is_it: Callable[[Asked], bool]


def _pairs(one: Any, other: Any) -> Iterator[tuple[int, int]]:
    yield from zip(codes(one), codes(other), strict=False)


def _only(asked: Asked, *expected: tuple[int, int]) -> bool:
    """Every code that differs is one of these: (Kafka's, ours)."""
    here, there = asked.plain["Kafka"], asked.plain["here"]
    found = {pair for pair in _pairs(here, there) if pair[0] != pair[1]}
    return bool(found) and found <= set(expected)


def _says(asked: Asked, text: str) -> bool:
    return text in asked.words


def _of_choice(asked: Asked) -> bool:
    """Only which partitions a member gets where the assignor may choose, and who gets there sooner for it."""
    named = [each.partition(":")[0] for each in asked.differences]
    chosen = all("assignment" in name or name in ("member_epoch", "groups[].members[].member_epoch") for name in named)
    free = ("assignor_name", "group_state")
    return (
        asked.chapter.startswith("groups")
        and asked.key in (HEARTBEAT, DESCRIBE)
        and (chosen or all(name.endswith(free) or "assignment" in name for name in named))
    )


def _fewer_empty_groups(asked: Asked) -> bool:
    if asked.key == DESCRIBE_GROUPS:
        return all(each.endswith("group_state: Empty | Dead") for each in asked.differences)
    if asked.key != LIST_GROUPS:
        return False
    theirs, ours = (
        {each["group_id"]: each["group_state"] for each in asked.plain[side]["groups"]} for side in ("Kafka", "here")
    )
    return ours.keys() <= theirs.keys() and all(theirs[name] == "Empty" for name in theirs.keys() - ours.keys())


KNOWN = (
    Known("Kafka never answers it", lambda asked: "silent" in asked.plain["Kafka"]),
    Known(
        "Kafka's handler fails (UNKNOWN_SERVER_ERROR)",
        lambda asked: UNKNOWN_SERVER_ERROR in set(codes(asked.plain["Kafka"])),
    ),
    Known(
        "a transactional batch without a producer id or epoch",
        lambda asked: (
            asked.key == PRODUCE
            and _only(asked, (0, 87), (47, 87))
            and (_says(asked, "of none") or _says(asked, "epoch -1 "))
        ),
    ),
    Known(
        "two faults at once: what is wrong with the transaction, and with the partition",
        lambda asked: (
            asked.key == PRODUCE
            and _only(asked, (53, 3), (53, 17), (42, 17), (42, 3), (47, 17), (49, 17), (48, 17), (120, 17))
        ),
    ),
    Known(
        "two faults at once: what a setting is given, and how",
        lambda asked: asked.key == ALTER_CONFIGS and _only(asked, (42, 40), (40, 42)),
    ),
    Known(
        "two faults at once: no producer id, and no transactional id",
        lambda asked: asked.key == COMMIT_OFFSETS and _only(asked, (42, 49)) and _says(asked, "transactional_id=''"),
    ),
    Known("EndTxn 5, commit, of what was aborted", lambda asked: asked.key == END and _only(asked, (48, 90))),
    Known(
        "a static member that joins again under its own member id",
        lambda asked: asked.key == HEARTBEAT and _only(asked, (111, 0), (111, 128)),
    ),
    Known("which partitions an assignor gives to whom, among equals", _of_choice),
    Known(
        "groups of the consumer protocol are described where it is off",
        lambda asked: asked.key == DESCRIBE and set(codes(asked.plain["Kafka"])) == {UNSUPPORTED_VERSION},
    ),
    Known(
        "a group without members and offsets",
        lambda asked: (asked.key == COMMIT_OFFSETS and _only(asked, (25, 22))) or _fewer_empty_groups(asked),
    ),
    Known(
        "a marker that a partition refuses, because it knows a later epoch",
        lambda asked: asked.key in (INIT, END) and _only(asked, (51, 0), (51, 90), (51, 48)),
    ),
    Known(
        "a batch behind one that its coordinator has refused",
        lambda asked: asked.key == PRODUCE and _only(asked, (45, 0)),
    ),
    Known(
        "transaction.version 0, and a client of the second generation all the same",
        lambda asked: (
            asked.key in (PRODUCE, ADD, END, COMMIT_OFFSETS)
            and asked.chapter.startswith("features")
            and 35 in set(codes(asked.plain["Kafka"]))
        ),
    ),
    Known(
        "ListOffsets, MAX_TIMESTAMP: the greatest that can be read",
        lambda asked: asked.key == LIST_OFFSETS and _says(asked, "timestamp=-3") and _says(asked, "isolation_level=1"),
    ),
    Known(
        "a marker that is there already",
        lambda asked: (
            asked.key in (PRODUCE, LIST_OFFSETS)
            and asked.chapter.startswith("markers")
            and all("offset" in each for each in asked.differences)
        ),
    ),
)


def reason(asked: Asked) -> str | None:
    """Why these answers differ on purpose; None where they should not."""
    return next((known.why for known in KNOWN if known.is_it(asked)), None)
