"""The input of the three pipelines is what it says, and the plain computation of it is right where one can see it."""

from __future__ import annotations

from collections import Counter

import pytest
from proof import made_records as made
from proof import plain_computation as plain
from proof.made_records import BOUGHT, CLICKS, CUSTOMERS, ORDERS, PAYMENTS, Record
from proof.watermark_rule import unexplained, watermarks

MINUTE_MS = 60_000
KINDS = {ORDERS: plain.ORDER, CLICKS: plain.CLICK, BOUGHT: plain.BOUGHT_ORDER, PAYMENTS: plain.PAYMENT}
TIMES = {ORDERS: "ordered_at", CLICKS: "clicked_at", BOUGHT: "ordered_at", PAYMENTS: "paid_at"}
MAKES = {ORDERS: made.shop, CLICKS: made.clicks, BOUGHT: made.joins, PAYMENTS: made.joins}


@pytest.mark.parametrize("topic", [ORDERS, CLICKS, BOUGHT, PAYMENTS])
def test_the_shares_are_those_that_are_asked_for(topic: str) -> None:
    records = [record for record in MAKES[topic](1, 4000) if record.topic == topic]
    found = {record: plain.values_of(record, KINDS[topic]) for record in records if record.value is not None}
    broken = sum(row is None or row.get("amount", 1) <= 0 for row in found.values())
    first = {(record.key, record.value): record for record in reversed(records)}.values()
    lateness = [each.time_ms - plain.milliseconds(row[TIMES[topic]]) for each in first if (row := found.get(each))]
    late = sum(each >= 10 * MINUTE_MS for each in lateness)
    doubled = sum(n - 1 for n in Counter((record.key, record.value) for record in records if record.value).values())
    assert broken / len(records) == pytest.approx(0.01, rel=0.05)
    assert late / len(records) == pytest.approx(0.03, rel=0.1)
    assert doubled / len(records) == pytest.approx(0.02, rel=0.15)
    assert min(lateness) >= 0
    assert max(lateness) <= 120 * MINUTE_MS


def test_a_seed_makes_the_same_records_in_their_places() -> None:
    for make in (made.shop, made.clicks, made.joins):
        records = make(7, 60)
        assert records == make(7, 60)
        assert records != make(8, 60)
        ends: Counter[tuple[str, int]] = Counter()
        for record in records:
            assert record.offset == ends[record[:2]]
            ends[record[:2]] += 1
        last: dict[tuple[str, int], int] = {}
        for record in records:
            assert last.get(record[:2], 0) <= record.time_ms, "a log has them as they were written"
            last[record[:2]] = record.time_ms


def test_small_topics_have_all_that_goes_wrong() -> None:
    orders = [record for record in made.shop(3, 60) if record.topic == ORDERS]
    dead = plain.latest_orders(orders).dead
    assert {plain.values_of(record, plain.ORDER) is None for record in dead} == {True, False}
    assert any(b"\xff" in (record.value or b"") for record in dead)
    assert any(record.value is None for record in orders)
    assert any(not _is_text(content) for record in orders for _, content in record.headers)
    assert any(not _is_text(name) for record in orders for name, _ in record.headers)


def _is_text(given: bytes) -> bool:
    try:
        given.decode()
    except UnicodeDecodeError:
        return False
    return True


def test_customers_are_what_debezium_writes() -> None:
    changes = list(plain.customer_changes(made.shop(5, 900)))
    keys = {record.key[:9] for record, *_ in changes}
    values = [record.value for record, *_ in changes]
    assert keys == {b'{"schema"', b'{"custome'}
    assert {value[:9] for value in values if value} == {b'{"schema"', b'{"before"'}
    assert any(value is None for value in values)
    for op in ("r", "c", "u", "d"):
        assert any(value and f'"op":"{op}"'.encode() in value for value in values)
    assert len({record[:2] for record, *_ in changes if record.topic == CUSTOMERS}) == made.PARTITIONS


def test_the_watermark_waits_for_every_source_after_a_restart() -> None:
    batches = [{"a": [100]}, {"a": [105], "b": [130]}, {"b": [90]}, {"a": [500]}, {}, {"b": [300]}, {}]
    delays = {"a": 10, "b": 20}
    assert watermarks(batches, delays) == [0, 0, 95, 95, 110, 110, 280]
    told = watermarks(batches, delays, restarts=[3])
    assert told == [0, 0, 95, 95, 95, 95, 280]
    assert unexplained(told, batches, delays) == []
    assert unexplained([0, 0, 95, 95, 95, 95, 281], batches, delays) == [6]
    assert unexplained([0, 0, 95, 95, 110, 109], batches, delays) == [5]


def click(offset: int, minute: float, page: str = "p") -> Record:
    value = f'{{"page": "{page}", "clicked_at": "{made.text_of(int(minute * MINUTE_MS))}"}}'.encode()
    return Record(CLICKS, 0, offset, b"u", value, (), offset)


def test_windows_close_and_late_clicks_count_by_the_batches() -> None:
    batches = [
        [click(0, 1), click(1, 21)],  # the watermark is at 11 minutes after it
        [click(2, 2), click(3, 4), click(4, 3, "q")],  # not late yet, though the window closes with this batch
        [click(5, 2), click(6, 4), click(7, 3, "q"), click(8, 12)],
        [],
    ]
    of_batches = watermarks([plain.click_times(batch) for batch in batches], plain.CLICK_DELAYS_MS)
    assert of_batches == [0, 11 * MINUTE_MS, 11 * MINUTE_MS, 11 * MINUTE_MS]
    found = plain.windows(batches, of_batches)
    assert (found.late_rows, found.late_groups) == ([0, 0, 3, 0], [0, 0, 2, 0])
    assert [(row["page"], row["clicks"], row["_offset"]) for row in found.closed.values()] == [("p", 3, 3), ("q", 1, 4)]
    assert len(found.counted) == 4
    ends = [{(CLICKS, 0): end} for end in (2, 5, 9, 9)]
    assert plain.cut([record for batch in batches for record in batch], ends) == batches


def bought(offset: int, order: str, minute: float) -> Record:
    at = made.text_of(int(minute * MINUTE_MS))
    value = f'{{"order_id": "{order}", "amount": 2.5, "ordered_at": "{at}"}}'.encode()
    return Record(BOUGHT, 0, offset, order.encode(), value, (), offset)


def paid(offset: int, payment: str, order: str, minute: float) -> Record:
    at = made.text_of(int(minute * MINUTE_MS))
    value = f'{{"payment_id": "{payment}", "order_id": "{order}", "amount": 2.5, "paid_at": "{at}"}}'.encode()
    return Record(PAYMENTS, 0, offset, payment.encode(), value, (), 100 + offset)


def test_orders_are_joined_with_their_payments() -> None:
    records = [bought(0, "a", 1), paid(0, "a/0", "a", 5), bought(1, "a", 1), bought(2, "b", 1), bought(3, "c", 2)]
    records += [paid(1, "b/0", "b", 3), paid(2, "d/0", "d", 4), Record(BOUGHT, 0, 4, b"b", None, (), 200)]
    assert list(plain.paid_orders(records)) == [("a", "a/0")]
    assert plain.paid_orders(records)[("a", "a/0")]["also"] == f"{BOUGHT}-0@1"


def test_orders_without_a_payment_come_late_and_once() -> None:
    batches = [
        [bought(0, "a", 1), bought(1, "b", 2), bought(2, "c", 100), paid(0, "a/0", "a", 30), paid(1, "c/0", "c", 110)],
        [paid(2, "b/0", "b", 63)],  # 61 minutes after its order; the watermark is at 90 minutes
        [paid(3, "b/1", "b", 40), bought(3, "b", 80), bought(4, "d", 95)],  # two are late
        [],
    ]
    of_batches = watermarks([plain.outcome_times(batch) for batch in batches], plain.OUTCOME_DELAYS_MS)
    assert of_batches == [0, 90 * MINUTE_MS, 90 * MINUTE_MS, 90 * MINUTE_MS]
    found = plain.outcomes(batches, of_batches)
    assert found.late == [0, 0, 2, 0]
    assert found.rows == Counter({("a", "a/0"): 1, ("c", "c/0"): 1, ("b", None): 1})


def test_a_customer_holds_from_one_change_to_the_next() -> None:
    records = made.shop(5, 900)
    history = list(plain.customer_history(records))
    current = {row["customer_id"]: row for row in history if row["current"]}
    latest = plain.latest_customers(record for record in records if record.topic == CUSTOMERS)
    # A change that comes again after later ones is the latest by the log, and none by its time.
    again = {number for number, row in latest.items() if current.get(number, {}).get("_offset") != row["_offset"]}
    assert len(again) < len(latest) / 4
    assert len(history) > 2 * len(current)
    ends = Counter((row["customer_id"], row["valid_to"]) for row in history)
    begins = {(row["customer_id"], row["valid_from"]) for row in history}
    assert set(ends.values()) == {1}
    assert sum(end not in begins for end in ends) > len(current), "some were deleted"
