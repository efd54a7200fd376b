"""What a live status shows first, and how the rest is reached, in terminals of every size."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any

import pytest

from duramen.cli.commands.damage import NodeDamage
from duramen.cli.commands.status_look import GroupStatus, PartitionStatus, Status, TopicStatus
from duramen.cli.commands.status_screen import KEYS, View, screen
from duramen.cli.shared.node_look import KnownNode
from duramen.cli.shared.quorum_look import QuorumAnswer, Replica

TOPICS = 52


def topic(number: int, *, offline: bool = False) -> TopicStatus:
    """The fullest is 30, the busiest 40, the one with most lag 51."""
    size = 3_000_000_000 if number == 30 else 1_000_000 + number
    rate = 98_765.0 if number == 40 else 0.0
    part = PartitionStatus(0, 1, 0, 1_234_567, size)
    parts = (part, PartitionStatus(1, None, None, None, None)) if offline else (part,)
    return TopicStatus(f"customer-orders.europe.{number:02}", parts, rate, 7_654_321 if number == 51 else 0)


def directory(path: str, **more: Any) -> Any:
    sound: dict[str, Any] = {
        "log_dir": path,
        "error_code": 0,
        "error_message": None,
        "damage": [],
        "offline": [],
        "scrub_bytes_per_second": 0,
    }
    return SimpleNamespace(**{**sound, **more})


FULL = directory("/second", error_message="no space left on device")
STATUS = Status(
    "c",
    1,
    [KnownNode(1, "127.0.0.1", 9092)],
    [topic(number, offline=number == 7) for number in range(TOPICS)],
    [GroupStatus(f"g-{number:02}", "Stable", 1, 10_000 * number, ()) for number in range(20)],
    None,
    None,
    [NodeDamage(1, [directory("/first"), FULL])],
    0.0,
    0.0,
)


def shown(status: Status, view: View, width: int, height: int, away: str | None = None) -> str:
    lines, _ = screen(status, view, width, height, away)
    assert len(lines) <= height
    assert max(len(line.text) for line in lines) <= width
    return "\n".join(line.text for line in lines)


def test_what_needs_attention_comes_first() -> None:
    text = shown(STATUS, View("bytes"), 80, 24)
    full, offline, lagging, fullest = (
        text.index(each)
        for each in ("FULL (no space left", "europe.07: 1 of 2 partitions offline", "g-19", "europe.30")
    )
    assert full < offline < lagging < fullest
    assert "g-18" in text
    assert "/first" not in text


@pytest.mark.parametrize("size", [(40, 12), (40, 24), (80, 24), (80, 50), (200, 100)])
def test_the_pages_show_everything_once(size: tuple[int, int]) -> None:
    text, page = "", 0
    while True:
        lines, view = screen(STATUS, View("bytes", page), *size)
        if view.page < page:
            break
        text += "\n".join(line.text for line in lines)
        page += 1
    names = [re.findall(rf"{number:02} ", text) for number in range(TOPICS)]
    assert all(names)
    rows = re.findall(r"^customer-.* ([\d.]+ [KMG]iB)\b", text, re.M)
    assert len(rows) == TOPICS
    assert [text.count(f"g-{number:02}") for number in range(20)] == [1] * 20
    for each in ("FULL", "offline\n", "/first"):
        assert each in text


@pytest.mark.parametrize(("key", "first", "value"), [("b", 30, "2.8 GiB"), ("r", 40, "98,765"), ("l", 51, "7,654,321")])
@pytest.mark.parametrize("width", [40, 41, 55, 80, 120])
def test_keys_sort_and_no_number_is_broken(width: int, key: str, first: int, value: str) -> None:
    view = View("name", 3).after(key)
    assert view == View(KEYS[key], 0)
    lines = shown(STATUS, view, width, 24).splitlines()
    heading = next(index for index, line in enumerate(lines) if line.startswith("TOPIC"))
    row = lines[heading + 1]
    assert f"{first:02} " in row
    assert row.split()[1:][: len(value.split())] == value.split() or value in row
    assert all(re.search(r"(\s(-|[\d,]+|[\d.]+ [KMG]?i?B))+$", line) for line in lines[heading + 1 : -1])


def test_the_last_line_says_the_keys() -> None:
    wide, narrow = (shown(STATUS, View("lag", 1), width, 24).splitlines()[-1] for width in (80, 40))
    assert wide == "page 2/6: n next, p back; sorted by lag: b bytes, r rate, l lag, a name; q ends"
    assert narrow == "2/6 n p | lag: b r l a | q ends"
    lines, _ = screen(STATUS, View("lag"), 80, 24, keys=False)
    assert lines[-1].text == "Ctrl-C ends"


def test_paging_ends_at_both_ends() -> None:
    assert View("name").after("p").page == 0
    assert View("name", 2).after("p").after("p").page == 0
    assert screen(STATUS, View("name", 99), 80, 24)[1].page == 5
    assert View("name", 1).after("x") == View("name", 1)


def test_a_node_that_is_away_is_the_first_thing_said() -> None:
    text = shown(STATUS, View("bytes"), 40, 24, "no answer since 12:00:03 (5 s): Connection refused")
    assert text.startswith("no answer since 12:00:03 (5 s):\n  Connection refused\ncluster c")


def test_a_small_cluster_is_one_page() -> None:
    small = STATUS._replace(topics=STATUS.topics[:3], groups=[], damage=[NodeDamage(1, [directory("/first")])])
    text = shown(small, View("name"), 80, 24)
    assert "page" not in text
    assert text.index("europe.02") < text.index("/first")


def test_several_nodes_have_a_table_in_eighty_columns() -> None:
    def voter(node_id: int, lag: int) -> Replica:
        return Replica(node_id, "d", (), 100 - lag, lag, None, None)

    nodes = [
        KnownNode(1, "broker-1.example.org", 19092),
        KnownNode(2, "broker-2.example.org", 19092, True, "timed out"),
        KnownNode(3, "broker-3.example.org", 19092, True),
    ]
    parts = (
        PartitionStatus(0, 1, 0, 5, 10, (1, 2, 3), (1, 3)),
        PartitionStatus(1, 3, 0, 5, 10, (3, 1, 2), (3, 1)),
    )
    voters = (voter(1, 0), voter(2, 42), voter(3, 0))
    quorum = QuorumAnswer(("a", 1), 1, 7, True, 100, voters, (), ())
    topics = [TopicStatus("t", parts, None, None, 2)]
    status = Status("c", 1, nodes, topics, [], None, None, [NodeDamage(2, [], "timed out")], 0.0, 0.0, quorum)
    text = shown(status, View("bytes"), 80, 24)
    assert "cluster c, controller 1, epoch 7" in text
    assert "node 2 (broker-2.example.org:19092) does not answer: timed out" in text
    assert "cannot ask for damage" not in text, "it is said once"
    assert "2 partitions under-replicated (t)" in text
    rows = [line.split() for line in text.splitlines() if re.match(r"\d  ", line)]
    assert rows == [
        ["1", "active", "leader", "0", "1", "2", "2"],  # and no room for the address
        ["2", "no", "answer", "voter", "42", "0", "2", "0"],
        ["3", "fenced", "voter", "0", "1", "2", "2"],
    ]


def test_a_voter_without_its_metadata_directory_is_none() -> None:
    def replica(node_id: int, directory: str, lag: int, fetched: int | None) -> Replica:
        return Replica(node_id, directory, (), 100 - lag, lag, fetched, None)

    nodes = [KnownNode(number, f"b{number}", 9092) for number in (1, 2, 3)]
    voters = (replica(1, "a", 0, 9000), replica(2, "b", 60, 1000), replica(3, "c", 0, 9000))
    quorum = QuorumAnswer(("b1", 1), 1, 7, True, 100, voters, (replica(2, "new", 0, 9000),), ())
    status = Status("c", 1, nodes, [], [], None, None, [], 0.0, 0.0, quorum)

    def roles(told: Status) -> list[list[str]]:
        return [
            line.split()[:4] for line in shown(told, View("bytes"), 80, 24).splitlines() if re.match(r" *\d  ", line)
        ]

    assert [row[1:] for row in roles(status)] == [
        ["active", "leader", "0"],
        ["active", "observer", "0"],
        ["active", "voter", "0"],
    ]
    warning = "node 2 does not vote in the metadata quorum"
    assert warning in shown(status, View("bytes"), 80, 24)
    back = quorum._replace(voters=(voters[0], replica(2, "b", 3, 9500), voters[2]))
    again = status._replace(quorum=back)
    assert roles(again)[1][1:] == ["active", "voter", "3"]
    assert warning not in shown(again, View("bytes"), 80, 24)
