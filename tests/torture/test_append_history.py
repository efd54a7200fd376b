"""Planted anomalies: each one is found, and found as what it is; a clean history has none."""

from __future__ import annotations

from typing import Any

import pytest
from tests.torture.append_history import (
    KINDS,
    Append,
    Found,
    History,
    Life,
    Moved,
    Operation,
    Outcome,
    Read,
    Transaction,
    circles,
    find,
)
from tests.torture.histories import transactions_of

C, A, U = Outcome.COMMITTED, Outcome.ABORTED, Outcome.UNKNOWN


def done(name: str, when: int, *operations: Operation, outcome: Outcome = C, **other: Any) -> Transaction:
    """A transaction from `when` on, of a producer of its own unless it is told otherwise."""
    ended = 0 if outcome is U else when + 8
    given = {"producer": f"p-{name}", "life": 1, "began": when, "asked": when + 7, "ended": ended, **other}
    timed = [
        each._replace(asked=when + 1, answered=when + 2) if isinstance(each, Read) and not each.answered else each
        for each in operations
    ]
    return Transaction(name=name, outcome=outcome, operations=tuple(timed), **given)


def put(key: str, value: int, offset: int = -1, sent: int = 0) -> Append:
    return Append(key, value, offset, sent)


def history(*transactions: Transaction, written: str, aborted: tuple[int, ...] = (), **other: Any) -> History:
    """written: 'x: 1 2 . 3, y: 4', by offset, a dot for a marker."""
    lists = {}
    for part in written.split(","):
        key, _, values = part.strip().partition(": ")
        lists[key] = tuple((at, int(value)) for at, value in enumerate(values.split()) if value != ".")
    committed = {key: tuple(each for each in records if each[1] not in aborted) for key, records in lists.items()}
    return History(transactions, committed=other.pop("committed", committed), written=lists, **other)


def clean() -> History:
    """Two producers, one of which aborts and is killed in a commit; a reader between; a group's positions."""
    return history(
        done("t1", 0, put("x", 1, 0), put("x", 2, 1), put("y", 3, 0), Moved("g/in", 5), producer="p"),
        done("t2", 10, put("x", 4, 3), outcome=A, producer="p"),
        done("t3", 20, Read("x", 0, 6, ((0, 1), (1, 2))), put("y", 5, 2)),
        done("t4", 30, put("x", 6), put("y", 7), Moved("g/in", 9), outcome=U, producer="p"),
        done("t5", 50, Found("g/in", 9, 48, 49), Read("x", 6, 8, ((6, 6),)), producer="p", life=2),
        written="x: 1 2 . 4 . . 6 ., y: 3 . 5 . 7 .",
        aborted=(4,),
        lives={("p", 1): Life(0, 0), ("p", 2): Life(40, 45)},
        positions={"g/in": 9},
    )


# Life 1 sleeps between the answer and its first transaction, in which life 2 commits a position.
SLEPT = history(
    done("t1", 0, Found("g/in", -1, 0, 0), Moved("g/in", 3), producer="p", life=2),
    done("t2", 20, Found("g/in", -1, 0, 1), producer="p", outcome=A),
    written="x: .",
    positions={"g/in": 3},
)

# Two transactions side by side, where writers were not kept apart: what Kafka allows.
SIDE_BY_SIDE = history(
    done("t1", 0, put("x", 1), put("y", 2), put("x", 5)),
    done("t2", 1, put("x", 3), put("y", 4)),
    done("r", 30, Read("x", 0, 1, ((0, 1),))),
    written="x: 1 3 5 . ., y: 4 2 . .",
)


def test_a_clean_history_has_no_anomaly() -> None:
    assert find(clean(), alone=True, steady=True) == []
    assert find(clean(), alone=False, steady=False) == []


def test_a_position_is_as_old_as_its_answer() -> None:
    assert find(SLEPT, alone=True, steady=True) == []


def test_a_read_is_as_old_as_its_answer() -> None:
    """Of a transaction that began first, in the middle of which its process slept."""
    slept = done("t2", 20, Read("x", 0, 4, ((0, 1), (2, 2)), 60, 61), producer="r")
    read = done("t3", 30, Read("x", 0, 2, ((0, 1),)), producer="r", life=2)
    both = history(done("t1", 0, put("x", 1)), slept, read, done("t4", 40, put("x", 2)), written="x: 1 . 2 .")
    assert find(both, alone=True, steady=True) == []


def test_a_life_that_begins_late_is_no_zombie() -> None:
    """Its process was started first, and its InitProducerId came behind the other one's: it is the newer."""
    late = history(
        done("t1", 20, put("x", 1, 0, 21), producer="p"), done("t2", 0, put("x", 2), producer="p", life=2, outcome=A),
        written="x: 1 .", lives={("p", 1): Life(1, 10), ("p", 2): Life(2, 4)},
    )  # fmt: skip
    assert find(late, alone=True, steady=True) == []


def test_what_kafka_allows_is_asked_for_only_where_keys_were_kept() -> None:
    """Opposite orders of two open transactions, and a stable end at the other one's first record."""
    assert find(SIDE_BY_SIDE, alone=False, steady=True) == []
    assert {each.kind for each in find(SIDE_BY_SIDE, alone=True, steady=True)} >= {"G0", "G1b"}


PLANTED: dict[str, tuple[str, History]] = {
    "two keys in opposite orders": (
        "G0",
        history(
            done("t1", 0, put("x", 1), put("y", 2)), done("t2", 1, put("x", 3), put("y", 4)),
            written="x: 1 3 . ., y: 4 2 . .",
        ),
    ),
    "three transactions in a ring": (
        "G0",
        history(
            done("t1", 0, put("x", 1), put("z", 2)), done("t2", 0, put("x", 3), put("y", 4)),
            done("t3", 0, put("y", 5), put("z", 6)), written="x: 1 3 . ., y: 4 5 . ., z: 6 2 . .",
        ),
    ),
    "an aborted value is read": (
        "G1a",
        history(
            done("t1", 0, put("x", 1), outcome=A), done("r", 20, Read("x", 0, 2, ((0, 1),))),
            written="x: 1 .", aborted=(1,),
        ),
    ),
    "an aborted value is committed in the end": (
        "G1a",
        history(done("t1", 0, put("x", 1), outcome=A), written="x: 1 ."),
    ),
    "a reader of an aborted transaction sees one, too": (
        "G1a",
        history(
            done("t1", 0, put("x", 1), outcome=A), done("r", 20, Read("x", 0, 2, ((0, 1),)), outcome=A),
            written="x: 1 .", aborted=(1,),
        ),
    ),
    "half of a transaction's appends to a key": (
        "G1b",
        history(
            done("t1", 0, put("x", 1), put("x", 2)), done("r", 5, Read("x", 0, 1, ((0, 1),))), written="x: 1 2 .",
        ),
    ),
    "half of it, where another one is open, but not from here on": (
        "G1b",
        history(
            done("t1", 0, put("x", 1), put("x", 2)), done("t2", 0, put("x", 3), put("x", 4)),
            done("r", 5, Read("x", 0, 3, ((0, 1), (1, 3)))), written="x: 1 3 . 4 2 . .",
        ),
    ),
    "two see each other": (
        "G1c",
        history(
            done("t1", 0, put("x", 1), Read("y", 0, 2, ((0, 2),))),
            done("t2", 0, put("y", 2), Read("x", 0, 2, ((0, 1),))),
            written="x: 1 ., y: 2 .",
        ),
    ),
    "one sees what follows it": (
        "G1c",
        history(
            done("t1", 0, put("x", 1), Read("y", 0, 2, ((0, 2),))), done("t2", 0, put("x", 3), put("y", 2)),
            written="x: 1 . 3 ., y: 2 .",
        ),
    ),
    "a committed value is gone": ("lost", history(done("t1", 0, put("x", 1)), written="x: .")),
    "a value lies there twice": ("doubled", history(done("t1", 0, put("x", 1)), written="x: 1 . 1 .")),
    "a value lies in two keys": ("doubled", history(done("t1", 0, put("x", 1)), written="x: 1 ., y: 1 .")),
    "a value lies in another key": ("misplaced", history(done("t1", 0, put("x", 1)), written="x: ., y: 1 .")),
    "a value that nobody wrote": ("made up", history(done("t1", 0, put("x", 1)), written="x: 1 7 .")),
    "a reader has a value that nobody wrote": (
        "made up",
        history(done("t1", 0, put("x", 1)), done("r", 9, Read("x", 0, 2, ((0, 1), (1, 7)))), written="x: 1 ."),
    ),
    "half of an unanswered commit": (
        "torn",
        history(done("t1", 0, put("x", 1), put("y", 2), outcome=U), written="x: 1 ., y: 2 .", aborted=(2,)),
    ),
    "an acknowledged offset is another one's": (
        "wrong offset",
        history(done("t1", 0, put("x", 1, 1), put("x", 2, 0)), written="x: 1 2 ."),
    ),
    "a reader was told another offset": (
        "wrong offset",
        history(done("t1", 0, put("x", 1)), done("r", 20, Read("x", 0, 3, ((1, 1),))), written="x: 1 ."),
    ),
    "a reader passes a committed value": (
        "skipped",
        history(done("t1", 0, put("x", 1), put("x", 2)), done("r", 9, Read("x", 0, 3, ((0, 1),))), written="x: 1 2 ."),
    ),
    "what was read is not committed in the end": (
        "vanished",
        history(
            done("t1", 0, put("x", 1), outcome=U), done("r", 20, Read("x", 0, 2, ((0, 1),))),
            written="x: 1 .", aborted=(1,),
        ),
    ),
    "a transaction's values change places": (
        "out of order",
        history(done("t1", 0, put("x", 1), put("x", 2)), written="x: 2 1 ."),
    ),
    "a producer's transactions change places": (
        "out of order",
        history(
            done("t1", 0, put("x", 1), producer="p"), done("t2", 10, put("x", 2), producer="p"), written="x: 2 . 1 .",
        ),
    ),
    "a value lands behind its transaction's end": (
        "late",
        history(done("t1", 0, put("x", 1)), done("t2", 10, put("x", 2)), written="x: 2 . 1 ."),
    ),
    "an aborted value lands behind the abort": (
        "late",
        history(
            done("t1", 0, put("x", 1), outcome=A), done("t2", 10, put("x", 2)), written="x: 2 . 1 .", aborted=(1,),
        ),
    ),
    "a fenced producer commits": (
        "zombie",
        history(
            done("t1", 0, put("x", 1), producer="p"), written="x: 1 .",
            lives={("p", 1): Life(0, 0), ("p", 2): Life(3, 5)},
        ),
    ),
    "a fenced producer's append is acknowledged": (
        "zombie",
        history(
            done("t1", 0, put("x", 1, 0, 9), producer="p", outcome=U), written="x: 1 .", aborted=(1,),
            lives={("p", 1): Life(0, 0), ("p", 2): Life(3, 8)},
        ),
    ),
    "the stable end steps back": (
        "stepped back",
        history(
            done("t1", 0, put("x", 1)), done("r1", 20, Read("x", 0, 2, ((0, 1),)), producer="r"),
            done("r2", 30, Read("x", 0, 0, ()), producer="r"), written="x: 1 .",
        ),
    ),
    "a position of an aborted transaction": (
        "aborted position",
        history(
            done("t1", 0, put("x", 1), Moved("g/in", 3), outcome=A), done("t2", 10, Found("g/in", 3, 8, 9)),
            written="x: 1 .", aborted=(1,),
        ),
    ),
    "a position of a commit that did not happen": (
        "aborted position",
        history(
            done("t1", 0, put("x", 1), Moved("g/in", 3), outcome=U), written="x: 1 .", aborted=(1,),
            positions={"g/in": 3},
        ),
    ),
    "a committed position is forgotten": (
        "wrong position",
        history(done("t1", 0, Moved("g/in", 3)), done("t2", 10, Found("g/in", -1, 9, 9)), written="x: ."),
    ),
    "the data without the position": (
        "wrong position",
        history(
            done("t1", 0, put("x", 1), Moved("g/in", 3), outcome=U), written="x: 1 .", positions={"g/in": -1},
        ),
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", PLANTED)
def test_a_planted_anomaly_is_found(what: str) -> None:
    kind, planted = PLANTED[what]
    found = find(planted, alone=True, steady=True)
    assert kind in {each.kind for each in found}, found


def test_every_kind_is_planted_and_named() -> None:
    assert {kind for kind, _ in PLANTED.values()} == set(KINDS)


@pytest.mark.parametrize("what", [what for what, (kind, _) in PLANTED.items() if kind not in ("G0", "G1c")])
def test_most_are_found_where_writers_were_side_by_side_as_well(what: str) -> None:
    kind, planted = PLANTED[what]
    if what == "half of it, where another one is open, but not from here on" or kind != "G1b":
        assert kind in {each.kind for each in find(planted, alone=False, steady=True)}


def test_circles_are_found_one_by_one() -> None:
    edges = {"a": ["b"], "b": ["a", "c"], "c": ["d"], "d": ["e"], "e": ["c"], "f": ["f"], "g": []}
    assert circles(edges) == [["c", "d", "e"], ["a", "b"]]


def test_the_notes_of_a_client_become_its_transactions() -> None:
    """One that was answered, one that was killed in its commit, one that was killed before."""
    notes: list[dict[str, Any]] = [
        {"e": "init", "at": 0},
        {"e": "life", "at": 1},
        {"e": "found", "at": 2, "key": 0, "offset": -1, "asked": 1},
        {"e": "begin", "at": 3, "txn": "a"},
        {"e": "append", "at": 4, "txn": "a", "key": 0, "value": 7},
        {"e": "read", "at": 5, "txn": "a", "key": 1, "start": 0, "end": 3, "records": [[1, 9]], "asked": 4},
        {"e": "acked", "at": 6, "value": 7, "offset": 5},
        {"e": "ask", "at": 7, "txn": "a", "commit": True},
        {"e": "end", "at": 8, "txn": "a", "outcome": "committed"},
        {"e": "begin", "at": 9, "txn": "b"},
        {"e": "moved", "at": 10, "txn": "b", "key": 0, "offset": 11},
        {"e": "ask", "at": 11, "txn": "b", "commit": True},
        {"e": "begin", "at": 12, "txn": "c"},
        {"e": "append", "at": 13, "txn": "c", "key": 0, "value": 8},
    ]
    began, found = transactions_of("p-1", 2, notes)
    assert began == Life(0, 1)
    assert found == [
        Transaction(
            "a", "p-1", 2, 3, 7, 8, C, (Found("g-p-1/0", -1, 1, 2), put("0", 7, 5, 4), Read("1", 0, 3, ((1, 9),), 4, 5))
        ),
        Transaction("b", "p-1", 2, 9, 11, 0, U, (Moved("g-p-1/0", 11),)),
        Transaction("c", "p-1", 2, 12, 0, 0, A, (put("0", 8, -1, 13),)),
    ]
