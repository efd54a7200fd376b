"""The proof of the demo with transactions can fail: each flaw is found out, and only that."""

from __future__ import annotations

from pathlib import Path

import pytest
from demo.exactly_once import Bill, Evidence, Note, by_partition, notes, prove
from demo.exactly_once_report import Facts, write
from demo.orders import orders

ORDERS = list(orders(6))


def bill(order: int, partition: int, offset: int, transaction: str) -> Bill:
    return Bill(partition, offset, ORDERS[order - 1].key, ORDERS[order - 1].value, transaction)


# Transaction 1.1 has three orders, 1.2 was rolled back, 1.3 was cut off with one, 2.1 has the rest.
INCOMING = [bill(number, number % 2, (number - 1) // 2, "") for number in range(1, 7)]
COMMITTED = [
    bill(1, 1, 0, "1.1"), bill(2, 0, 0, "1.1"), bill(3, 1, 1, "1.1"),
    bill(4, 0, 4, "2.1"), bill(5, 1, 5, "2.1"), bill(6, 0, 5, "2.1"),
]  # fmt: skip
UNSEEN = [bill(4, 0, 2, "1.2"), bill(5, 1, 3, "1.3")]
JOURNAL = [
    Note(0.1, "1.1", "begun", 3), Note(0.2, "1.1", "committed", 3), Note(0.3, "1.2", "begun", 1),
    Note(0.4, "1.2", "rolled-back", 0), Note(0.5, "1.3", "begun", 1), Note(2.0, "2.1", "begun", 3),
    Note(2.1, "2.1", "committed", 3),
]  # fmt: skip
SOUND = Evidence(ORDERS, INCOMING, COMMITTED, COMMITTED + UNSEEN, [7, 7], [7, 7], JOURNAL, [3, 3], [3, 3])


def failed(evidence: Evidence) -> list[int]:
    """Which of the claims do not hold, by their places."""
    return [number for number, each in enumerate(prove(evidence)) if not each.holds]


def test_a_sound_run_is_believed() -> None:
    assert failed(SOUND) == []
    assert [value for _, value in by_partition(COMMITTED)[1]] == [ORDERS[number].value for number in (0, 2, 4)]


@pytest.mark.parametrize(
    ("evidence", "claims"),
    [
        (SOUND._replace(committed=COMMITTED[:-1]), [0, 2, 5]),
        (SOUND._replace(committed=[*COMMITTED, bill(3, 1, 6, "2.1")]), [1, 2, 5]),
        (SOUND._replace(committed=[*COMMITTED[:4], bill(6, 1, 5, "2.1"), bill(5, 0, 5, "2.1")]), [2]),
        (SOUND._replace(committed=COMMITTED + UNSEEN[:1]), [1, 2, 3]),
        (SOUND._replace(journal=[*JOURNAL, Note(3.0, "2.2", "committed", 1)]), [4]),
        (SOUND._replace(everything=[*COMMITTED, *UNSEEN, bill(6, 0, 6, "2.1")]), [5]),
        (SOUND._replace(stood=[3, 2]), [6]),
        (SOUND._replace(stable=[7, 6]), [7]),
    ],
)
def test_a_flaw_is_found_out(evidence: Evidence, claims: list[int]) -> None:
    assert failed(evidence) == claims


def test_the_journal_is_read_and_the_report_written(tmp_path: Path) -> None:
    journal = tmp_path / "journal"
    journal.write_text("".join(f"{note.at} {note.transaction} {note.what} {note.orders}\n" for note in JOURNAL))
    assert notes(journal) == JOURNAL
    moments = [(note.at, note.what, note.orders) for note in JOURNAL]
    page = tmp_path / "report.html"
    write(page, Facts(6, 2.5, 2, 1, 2), moments, [("node and program", 0.5, 2.1)], prove(SOUND))
    assert page.read_text().count("<rect") >= 5
    assert "node and program killed" in page.read_text()


def test_the_orders_are_always_the_same() -> None:
    assert list(orders(6)) == ORDERS
    assert [order.row for order in ORDERS] == [1, 2, 3, 4, 5, 6]
