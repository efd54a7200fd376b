"""The order in which records of several streams come."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from duramen.dlsn import dlsn_at
from duramen.streams.merge_order import MergeOrder
from duramen.streams.records import StreamRecord


def record(offset: int, txid: int) -> StreamRecord:
    return StreamRecord(offset, dlsn_at(offset, offset, 0), txid, None, b"", ())


def taken(order: MergeOrder) -> tuple[str, int] | str | None:
    """(stream, txid) of a record, or the stream that has to bring one."""
    turn = order.next()
    if turn is None:
        return None
    name, found = turn
    return name if found is None else (name, found.txid)


def test_a_record_waits_for_a_stream_that_may_have_a_smaller_one() -> None:
    order = MergeOrder(["a", "b"])
    order.brought("a", record(0, 10))
    assert taken(order) == "b"
    order.idle("b", 9)
    assert taken(order) == "b"
    order.brought("b", record(0, 9))
    assert taken(order) == ("b", 9)
    assert taken(order) == "b"
    order.ended("b")
    assert taken(order) == ("a", 10)
    assert taken(order) == "a"
    order.ended("a")
    assert taken(order) is None


def test_of_equal_ids_the_name_decides_and_an_idle_stream_counts_with_its_own() -> None:
    order = MergeOrder(["a", "b"])
    order.brought("a", record(0, 7))
    order.idle("b", 7)
    assert taken(order) == ("a", 7)  # whatever b brings with 7 comes behind it
    order.idle("a", 7)
    order.brought("b", record(0, 7))
    assert taken(order) == "a"  # which may have another one with 7


streams = st.dictionaries(st.sampled_from("abcd"), st.lists(st.integers(1, 5)).map(sorted), min_size=1)


@settings(max_examples=60)
@given(streams, st.randoms(use_true_random=False))
def test_whenever_they_arrive_the_order_is_the_same(written: dict[str, list[int]], chance: object) -> None:
    """Each stream has some of its records later; what is idle meanwhile says its last id."""
    order = MergeOrder(written)
    left = {name: list(enumerate(txids)) for name, txids in written.items()}
    last = dict.fromkeys(written, 0)
    found = []
    while (turn := order.next()) is not None:
        name, head = turn
        if head is not None:
            order.idle(name, head.txid)
            found.append((head.txid, name, head.offset))
        elif left[name] and (order.is_known(name) or chance.random() < 0.5):  # type: ignore[attr-defined]
            offset, txid = left[name].pop(0)
            last[name] = txid
            order.brought(name, record(offset, txid))
        elif not left[name]:
            order.ended(name)
        else:
            order.idle(name, last[name])
    assert found == sorted((txid, name, at) for name, txids in written.items() for at, txid in enumerate(txids))
