"""What the three pipelines have to come to, computed from their input in plain Python: no Spark, no code of ours.

Rows are dictionaries as a table's `rows()` gives them, with the record that each comes from in `_topic`, `_partition`
and `_offset`. What depends on how the log was cut into batches gets the batches.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any, Final, NamedTuple

from proof.made_records import BOUGHT, CLICKS, CUSTOMERS, ORDERS, PAYMENTS, Record
from proof.watermark_rule import Times

Row = dict[str, Any]
Kinds = Mapping[str, Callable[[Any], Any]]
WINDOW_MS: Final = 5 * 60_000
CLICK_DELAYS_MS: Final = {CLICKS: 10 * 60_000}
OUTCOME_DELAYS_MS: Final = {BOUGHT: 10 * 60_000, PAYMENTS: 20 * 60_000}
PAID_WITHIN_MS: Final = 60 * 60_000
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class UnfitError(ValueError):
    """A value is not what its topic says."""


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise UnfitError(value)
    return value


def _whole(value: Any) -> int:
    if not isinstance(value, int):
        raise UnfitError(value)
    return value


def _number(value: Any) -> float:
    if not isinstance(value, int | float):
        raise UnfitError(value)
    return float(value)


def _moment(value: Any) -> datetime:
    return datetime.fromisoformat(_text(value))


ORDER: Final[Kinds] = {
    "order_id": _text,
    "customer_id": _whole,
    "amount": _number,
    "status": _text,
    "ordered_at": _moment,
}
CLICK: Final[Kinds] = {"page": _text, "clicked_at": _moment}
BOUGHT_ORDER: Final[Kinds] = {"order_id": _text, "amount": _number, "ordered_at": _moment}
PAYMENT: Final[Kinds] = {"payment_id": _text, "order_id": _text, "amount": _number, "paid_at": _moment}


def values_of(record: Record, kinds: Kinds) -> Row | None:
    """The fields of a record's value; None where it is not what `kinds` says."""
    assert record.value is not None
    try:
        whole = json.loads(record.value.decode())
        return {name: kind(whole[name]) for name, kind in kinds.items()}
    except (ValueError, KeyError, TypeError):
        return None


def milliseconds(moment: datetime) -> int:
    """Since 1970."""
    return (moment - _EPOCH) // timedelta(milliseconds=1)


def moment_of(time_ms: int) -> datetime:
    """The other way."""
    return _EPOCH + timedelta(milliseconds=time_ms)


def place_of(record: Record) -> Row:
    """The columns that say which record a row comes from."""
    return {"_topic": record.topic, "_partition": record.partition, "_offset": record.offset}


def cut(records: Iterable[Record], ends: Sequence[Mapping[tuple[str, int], int]]) -> list[list[Record]]:
    """The records of each batch. ends: of each, the first offset after it, by topic and partition."""
    found: list[list[Record]] = [[] for _ in ends]
    for record in records:
        numbers = (number for number, end in enumerate(ends) if record.offset < end.get(record[:2], 0))
        number = next(numbers, None)
        if number is not None:
            found[number].append(record)
    return found


# ---- shop ------------------------------------------------------------------------------------------------------------


class Orders(NamedTuple):
    """rows: the latest order of each key; dead: the records that do not fit, or do not hold."""

    rows: dict[str, Row]
    dead: list[Record]


def latest_orders(records: Iterable[Record]) -> Orders:
    """Of `orders`: what is broken, or has no amount, changes nothing."""
    rows: dict[str, Row] = {}
    dead = []
    for record in records:
        if record.topic != ORDERS:
            continue
        key = record.key.decode()
        if record.value is None:
            rows.pop(key, None)
            continue
        found = values_of(record, ORDER)
        if found is None or found["amount"] <= 0:
            dead.append(record)
        else:
            rows[key] = {**found, **place_of(record)}
    return Orders(rows, dead)


def dead_orders(records: Iterable[Record]) -> Iterator[Row]:
    """Of `orders`, the dead letter of each that does not fit or does not hold: all of the record, and why."""
    for record in latest_orders(records).dead:
        yield {
            "key": record.key,
            "value": record.value,
            "own": _headers_of(record),
            "place": (record.topic, str(record.partition), str(record.offset)),
            "why": "corrupt" if values_of(record, ORDER) is None else "paid",
        }


def _headers_of(record: Record) -> tuple[tuple[bytes, bytes], ...]:
    """As Spark hands them on: their names are text."""
    return tuple((name.decode(errors="replace").encode(), content) for name, content in record.headers)


def sent_orders(records: Iterable[Record]) -> Iterator[Row]:
    """Of `orders`, a record for each that was sent, with headers and time of the record it comes from."""
    for record in records:
        order = values_of(record, ORDER) if record.topic == ORDERS and record.value is not None else None
        if order is not None and order["amount"] > 0 and order["status"] == "sent":
            yield {
                "key": record.key,
                "order_id": order["order_id"],
                "amount": order["amount"],
                "ordered_at": order["ordered_at"].isoformat(timespec="microseconds").replace("+00:00", "Z"),
                "headers": _headers_of(record),
                "time_ms": record.time_ms,
            }


class CustomerChange(NamedTuple):
    """What a record of Debezium's does. after: None deletes; at_ms: when the database did, None of a tombstone."""

    record: Record
    number: int
    after: Row | None
    at_ms: int | None


def customer_changes(records: Iterable[Record]) -> Iterator[CustomerChange]:
    """Of `db.customers`, in the order of the log."""
    for record in records:
        if record.topic == CUSTOMERS:
            key = json.loads(record.key)
            number = key.get("payload", key)["customer_id"]
            whole = {} if record.value is None else json.loads(record.value)
            envelope = whole.get("payload", whole)
            yield CustomerChange(record, number, envelope.get("after"), envelope.get("ts_ms"))


def latest_customers(records: Iterable[Record]) -> dict[int, Row]:
    """The latest row of each customer that was not deleted."""
    rows: dict[int, Row] = {}
    for record, number, after, _ in customer_changes(records):
        rows.pop(number, None)
        if after is not None:
            rows[number] = {**after, "updated_at": _moment(after["updated_at"]), **place_of(record)}
    return rows


def customer_history(records: Iterable[Record]) -> Iterator[Row]:
    """Every version of each customer, with the interval in which it held; versions that come again, and late."""
    versions: dict[int, dict[int, tuple[Record, Row | None]]] = {}
    for record, number, after, at_ms in customer_changes(records):
        if at_ms is not None:
            versions.setdefault(number, {})[at_ms] = record, after
    for of_one in versions.values():
        for begin, end in pairwise([*sorted(of_one), None]):
            assert begin is not None
            record, after = of_one[begin]
            if after is not None:
                yield {
                    **after,
                    "updated_at": _moment(after["updated_at"]),
                    "valid_from": moment_of(begin),
                    "valid_to": None if end is None else moment_of(end),
                    "current": end is None,
                    **place_of(record),
                }


# ---- clicks ----------------------------------------------------------------------------------------------------------


class Windows(NamedTuple):
    """counted: the clicks of each window and page, that were not late; closed: those of windows that are done with.

    late_rows, late_groups: of each batch, clicks that were dropped, and how many windows of pages those were of. Spark
    drops, and counts, after it has put together what a batch has of a group.
    """

    counted: dict[tuple[datetime, str], Row]
    closed: dict[tuple[datetime, str], Row]
    late_rows: list[int]
    late_groups: list[int]


def click_times(batch: Iterable[Record]) -> Times:
    """When the clicks of a batch were made."""
    return {CLICKS: [at for at, _ in _clicked(batch)]}


def _clicked(batch: Iterable[Record]) -> Iterator[tuple[int, tuple[str, Record]]]:
    for record in batch:
        click = values_of(record, CLICK) if record.topic == CLICKS and record.value is not None else None
        if click is not None:
            yield milliseconds(click["clicked_at"]), (click["page"], record)


def windows(batches: Sequence[Sequence[Record]], watermarks: Sequence[int]) -> Windows:
    """Of `clicks`, in windows of five minutes. watermarks: of each batch."""
    found = Windows({}, {}, [], [])
    waiting: set[tuple[datetime, str]] = set()
    latest: dict[tuple[datetime, str], Record] = {}
    for batch, before, now in zip(batches, _before(watermarks), watermarks, strict=True):
        late: Counter[tuple[datetime, str]] = Counter()
        for at, (page, record) in _clicked(batch):
            group = moment_of(at - at % WINDOW_MS), page
            if _end_ms(group) <= before:
                late[group] += 1
                continue
            waiting.add(group)
            latest[group] = max(latest.get(group, record), record, key=_by_time)
            count = found.counted.get(group, {"clicks": 0})["clicks"] + 1
            found.counted[group] = {"start": group[0], "page": page, "clicks": count, **place_of(latest[group])}
        found.late_rows.append(late.total())
        found.late_groups.append(len(late))
        for group in sorted(group for group in waiting if _end_ms(group) <= now):
            waiting.remove(group)
            found.closed[group] = found.counted[group]
    return found


def _before(watermarks: Sequence[int]) -> list[int]:
    """Of each batch, the watermark of the one before, by which its rows are late."""
    return [0, *watermarks][: len(watermarks)]


def page_counts(batches: Sequence[Sequence[Record]]) -> dict[str, list[int]]:
    """Of `clicks`, how many each page had after each batch that has some of it."""
    found: dict[str, list[int]] = {}
    for batch in batches:
        for page, more in Counter(page for _, (page, _) in _clicked(batch)).items():
            counts = found.setdefault(page, [])
            counts.append((counts[-1] if counts else 0) + more)
    return found


def _end_ms(group: tuple[datetime, str]) -> int:
    return milliseconds(group[0]) + WINDOW_MS


def _by_time(record: Record) -> tuple[int, str, int, int]:
    return record.time_ms, *record[:3]


# ---- joins -----------------------------------------------------------------------------------------------------------


def paid_orders(records: Iterable[Record]) -> dict[tuple[str, str], Row]:
    """Of `bought` and `payments`, each payment with its order as both were last; a deleted order has none."""
    orders: dict[str, tuple[Record, Row | None]] = {}
    payments: dict[str, tuple[Record, Row]] = {}
    for record in records:
        if record.topic == BOUGHT:
            order = None if record.value is None else values_of(record, BOUGHT_ORDER)
            if record.value is None or order is not None:
                orders[record.key.decode()] = record, order
        elif record.topic == PAYMENTS and record.value is not None:
            payment = values_of(record, PAYMENT)
            if payment is not None:
                payments[payment["payment_id"]] = record, payment
    found = {}
    for payment_id, (paid_by, payment) in payments.items():
        bought_by, order = orders.get(payment["order_id"], (paid_by, None))
        if order is not None:
            latest, other = sorted((bought_by, paid_by), key=_by_time, reverse=True)
            found[(payment["order_id"], payment_id)] = {
                "order_id": payment["order_id"],
                "payment_id": payment_id,
                "ordered": order["amount"],
                "paid": payment["amount"],
                **place_of(latest),
                "also": f"{other.topic}-{other.partition}@{other.offset}",
            }
    return found


class Outcomes(NamedTuple):
    """rows: of each order that is done with, its payments within the hour, or that there was none; how often each.

    late: of each batch, the orders and payments that were dropped.
    """

    rows: Counter[tuple[str, str | None]]
    late: list[int]


def outcome_times(batch: Iterable[Record]) -> Times:
    """When the orders and payments of a batch were made."""
    times: dict[str, list[int]] = {BOUGHT: [], PAYMENTS: []}
    for topic, at, _ in _timed(batch):
        times[topic].append(at)
    return times


def outcomes(batches: Sequence[Sequence[Record]], watermarks: Sequence[int]) -> Outcomes:
    """Of `bought` and `payments`, joined by order and time. watermarks: of each batch."""
    found = Outcomes(Counter(), [])
    orders: dict[str, list[int]] = {}
    payments: dict[str, list[tuple[str, int]]] = {}
    paid: set[tuple[str, int]] = set()
    for batch, before, now in zip(batches, _before(watermarks), watermarks, strict=True):
        late = 0
        for topic, at, row in _timed(batch):
            order_id = row["order_id"]
            if at <= before:
                late += 1
                continue
            if topic == BOUGHT:
                orders.setdefault(order_id, []).append(at)
                pairs = [(payment_id, at) for payment_id, paid_at in payments.get(order_id, ()) if _within(at, paid_at)]
            else:
                payments.setdefault(order_id, []).append((row["payment_id"], at))
                pairs = [(row["payment_id"], ordered) for ordered in orders.get(order_id, ()) if _within(ordered, at)]
            for payment_id, ordered_at in pairs:
                found.rows[(order_id, payment_id)] += 1
                paid.add((order_id, ordered_at))
        found.late.append(late)
        for order_id, times in orders.items():
            done = [at for at in times if at <= now - PAID_WITHIN_MS]
            orders[order_id] = [at for at in times if at > now - PAID_WITHIN_MS]
            if never := sum((order_id, at) not in paid for at in done):
                found.rows[(order_id, None)] += never
    return found


def _within(ordered_at: int, paid_at: int) -> bool:
    return ordered_at <= paid_at <= ordered_at + PAID_WITHIN_MS


def _timed(batch: Iterable[Record]) -> Iterator[tuple[str, int, Row]]:
    for record in batch:
        kinds = {BOUGHT: BOUGHT_ORDER, PAYMENTS: PAYMENT}.get(record.topic)
        row = values_of(record, kinds) if kinds and record.value is not None else None
        if row is not None:
            yield record.topic, milliseconds(row["ordered_at" if record.topic == BOUGHT else "paid_at"]), row
