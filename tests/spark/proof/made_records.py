"""Input of three pipelines, made by a seed: topics as a log has them, with what goes wrong in real ones.

Of each topic's values BROKEN are no JSON, of a wrong type or no UTF-8 (or, of orders, of no amount that can be),
DOUBLED come a second time as a producer's retry sends them, and LATE have the time of 10 minutes to 2 hours before.
Some records delete, some headers are no UTF-8. A topic of Debezium's has what a database did, and no broken value.
"""

from __future__ import annotations

import json
import random
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

BROKEN, DOUBLED, LATE = 0.01, 0.02, 0.03
"""Shares of a topic's records."""
LATE_MS: Final = (10 * 60_000, 120 * 60_000)
BEGIN_MS: Final = 1_767_225_600_000
"""2026-01-01, UTC."""
JITTER_MS: Final = 5_000
"""How much earlier than its record's time an event is that is not late."""
RETRY_MAX: Final = 20
"""After how many further records a doubled one comes again."""
ORDERS, CUSTOMERS, CLICKS, BOUGHT, PAYMENTS = "orders", "db.customers", "clicks", "bought", "payments"
"""The topics: `bought` has orders of a join."""
PARTITIONS: Final = 2


class Record(NamedTuple):
    """One record in its place. time_ms: when it was written."""

    topic: str
    partition: int
    offset: int
    key: bytes
    value: bytes | None
    headers: tuple[tuple[bytes, bytes], ...]
    time_ms: int


class Event(NamedTuple):
    """What happened, before anything goes wrong. value: None deletes."""

    time_ms: int
    key: bytes
    value: dict[str, Any] | None


def text_of(time_ms: int) -> str:
    """A moment as the values have it."""
    return datetime.fromtimestamp(time_ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def shop(seed: int, orders: int) -> list[Record]:
    """So many orders, some of which change or are deleted, and as many changes of customers."""
    chance = random.Random(f"shop {seed}")
    made = _spoiled(chance, ORDERS, _orders(chance, orders), "ordered_at")
    return made + _in_place(chance, CUSTOMERS, _doubled(chance, _customers(chance, orders)))


def clicks(seed: int, count: int) -> list[Record]:
    """So many clicks on a few pages, one in half a minute."""
    chance = random.Random(f"clicks {seed}")
    times = _times(chance, count, 60_000)
    found = [
        Event(at, b"u%d" % chance.randrange(50), {"page": f"p{chance.randrange(4)}", "clicked_at": text_of(at)})
        for at in times
    ]
    return _spoiled(chance, CLICKS, found, "clicked_at")


def joins(seed: int, orders: int) -> list[Record]:
    """So many orders, most of which are paid within an hour, some twice and some never; a few orders are deleted."""
    chance = random.Random(f"joins {seed}")
    bought, paid = [], []
    for number, at in enumerate(_times(chance, orders, 180_000)):
        order = f"b{number}"
        amount = chance.randrange(100, 100_000) / 100
        bought.append(Event(at, order.encode(), {"order_id": order, "amount": amount, "ordered_at": text_of(at)}))
        for part in range(chance.choices((0, 1, 2), (15, 80, 5))[0]):
            payment, later = f"{order}/{part}", at + chance.randrange(1_000, 55 * 60_000)
            value = {"payment_id": payment, "order_id": order, "amount": amount, "paid_at": text_of(later)}
            paid.append(Event(later, payment.encode(), value))
        if chance.random() < 0.03:
            bought.append(Event(at + chance.randrange(1_000, 7_200_000), order.encode(), None))
    return _spoiled(chance, BOUGHT, bought, "ordered_at") + _spoiled(chance, PAYMENTS, paid, "paid_at")


def _times(chance: random.Random, count: int, apart_ms: int) -> list[int]:
    times = []
    now = BEGIN_MS
    for _ in range(count):
        now += chance.randrange(1, apart_ms)
        times.append(now - now % 60_000 if chance.random() < 0.02 else now)  # some where windows begin and end
    return sorted(times)


def _orders(chance: random.Random, count: int) -> list[Event]:
    found, known = [], []
    for number, at in enumerate(_times(chance, count, 60_000)):
        if known and chance.random() < 0.05:
            found.append(Event(at, known.pop(chance.randrange(len(known))).encode(), None))
            continue
        if known and chance.random() < 0.3:
            order = chance.choice(known)
        else:
            known.append(order := f"o{number}")
        value = {
            "order_id": order,
            "customer_id": chance.randrange(40),
            "amount": chance.randrange(1, 100_000) / 100,
            "status": chance.choice(("new", "paid", "sent", "zurück ✓")),
            "ordered_at": text_of(at),
        }
        found.append(Event(at, order.encode(), value))
    return found


def _customers(chance: random.Random, count: int) -> list[Event]:
    """What a connector tells of a table: envelopes and tombstones; keys, as some settings have it, with a schema."""
    found: list[Event] = []
    rows: dict[int, dict[str, Any]] = {}
    for at in _times(chance, count, 180_000):
        number = chance.randrange(max(3, count // 5))
        before = rows.get(number)
        after: dict[str, Any] | None = {
            "customer_id": number,
            "name": chance.choice(("Ada", "Grace", "Käthe", "山田", 'O"Neil')),
            "city": chance.choice((None, "Wien", "Łódź", "Oslo")),
            "updated_at": text_of(at),
        }
        op = "c" if before is None else "u"
        if before is None and len(found) < count // 10:
            op = "r"
        if before is not None and chance.random() < 0.25:
            op, after = "d", None
        source = {"version": "3.0", "connector": "postgresql", "name": "db", "ts_ms": at, "table": "customers"}
        envelope = {"before": before, "after": after, "source": source, "op": op, "ts_ms": at}
        with_schema = chance.random() < 0.5
        key = _sound(_connect({"customer_id": number}) if with_schema else {"customer_id": number})
        found.append(Event(at, key, _connect(envelope) if with_schema else envelope))
        if after is None:
            del rows[number]
            found.append(Event(at, key, None))
        else:
            rows[number] = after
    return found


def _connect(payload: dict[str, Any]) -> dict[str, Any]:
    """As Kafka Connect's JsonConverter writes it, of the schema only what readers look at first."""
    return {"schema": {"type": "struct", "fields": [], "optional": False}, "payload": payload}


class _Written(NamedTuple):
    """An event as a producer sends it."""

    time_ms: int
    key: bytes
    value: bytes | None


def _spoiled(chance: random.Random, topic: str, events: Sequence[Event], at: str) -> list[Record]:
    """Events with values that are broken or late, records that are doubled, and headers. at: the field of the time."""
    events = sorted(events, key=lambda event: event.time_ms)
    valued = [number for number, event in enumerate(events) if event.value is not None]
    breaks = [_no_json, _wrong_type(at), _no_text, *([_no_amount] if topic == ORDERS else [])]
    broken = max(len(breaks), round(BROKEN * len(events)))
    picked = chance.sample(valued, broken + max(3, round(LATE * len(events))))
    how = dict(zip(picked[:broken], (breaks * broken)[:broken], strict=True))
    late = set(picked[broken:])
    written = []
    for number, (time_ms, key, value) in enumerate(events):
        if value is None:
            written.append(_Written(time_ms, key, None))
            continue
        earlier = chance.randint(*LATE_MS) if number in late else chance.randrange(JITTER_MS)
        exact = value[at].endswith(":00.000Z") and number not in late
        value = {**value, at: text_of(time_ms if exact else time_ms - earlier)}
        written.append(_Written(time_ms, key, how.get(number, _sound)(value)))
    return _in_place(chance, topic, _doubled(chance, written, spared=set(how)))


def _sound(value: dict[str, Any]) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def _no_json(value: dict[str, Any]) -> bytes:
    return _sound(value)[:-9]


def _wrong_type(at: str) -> Callable[[dict[str, Any]], bytes]:
    return lambda value: _sound({**value, at: {"when": value[at]}})


def _no_text(value: dict[str, Any]) -> bytes:
    return _sound(value)[:-1] + b',"note":"\xff\xfe"}'


def _no_amount(value: dict[str, Any]) -> bytes:
    return _sound({**value, "amount": -value["amount"] if value["amount"] > 500 else 0})


def _doubled(chance: random.Random, events: Iterable[Event | _Written], spared: Iterable[int] = ()) -> list[_Written]:
    """With the records that a producer sends again. spared: numbers of those that come once."""
    whole = [
        event
        if isinstance(event, _Written)
        else _Written(event.time_ms, event.key, None if event.value is None else _sound(event.value))
        for event in events
    ]
    often = sorted(set(range(len(whole))) - set(spared))
    again: dict[int, list[_Written]] = {}
    for number in chance.sample(often, max(2, round(DOUBLED * len(whole)))):
        again.setdefault(number + chance.randrange(RETRY_MAX), []).append(whole[number])
    found = []
    for number, written in enumerate(whole):
        found.append(written)
        found += [each._replace(time_ms=written.time_ms) for each in again.pop(number, ())]
    return found + [each._replace(time_ms=whole[-1].time_ms) for late in again.values() for each in late]


def _in_place(chance: random.Random, topic: str, written: Sequence[_Written]) -> list[Record]:
    """Records with headers, partitions and offsets; a key has its one partition."""
    ends: Counter[int] = Counter()
    found = []
    no_text = set(chance.sample(range(len(written)), max(2, len(written) // 100)))
    for number, (time_ms, key, value) in enumerate(written):
        partition = zlib.crc32(_of_row(key)) % PARTITIONS
        headers = ((b"trace", b"%08x" % chance.randrange(1 << 32)),)
        if number in no_text:
            headers = ((b"trace", b"\xff\xfe" + headers[0][1]), (b"tra\xe7a", b"\x80"))
        found.append(Record(topic, partition, ends[partition], key, value, headers, time_ms))
        ends[partition] += 1
    return found


def _of_row(key: bytes) -> bytes:
    """The key's row: with a schema or without it is the same one."""
    whole = json.loads(key) if key.startswith(b"{") else None
    return key if whole is None else json.dumps(whole.get("payload", whole)).encode()
