"""Open and ended transactions of a log: the first unstable offset, by a plain reading of the definition."""

from __future__ import annotations

import time

from hypothesis import given
from hypothesis import strategies as st

from duramen.storage.segment.open_transactions import OpenTransactions

Steps = list[tuple[int, int]]


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 9)), max_size=60))
def test_it_holds_back_what_is_open_or_ended_and_not_committed(steps: Steps) -> None:
    transactions = OpenTransactions()
    opened: dict[int, int] = {}
    ended: dict[int, int] = {}
    offset = 0
    for kind, number in steps:
        if kind <= 1:
            opened[offset] = number
            transactions.begin(offset, number)
        elif kind == 2 and opened:
            start = sorted(opened)[number % len(opened)]
            ended[offset] = start
            del opened[start]
            transactions.end(start, offset)
        elif kind == 3:
            high = offset - number
            transactions.committed(high)
            ended = {marker: start for marker, start in ended.items() if marker >= high}
        elif kind == 4:
            offset = max(0, offset - number)
            again = [start for marker, start in ended.items() if marker >= offset]
            transactions.cut(offset, [])
            opened = {start: -1 for start in (*opened, *again) if start < offset}
            ended = {marker: start for marker, start in ended.items() if marker < offset}
        elif kind == 5:
            others = OpenTransactions()
            others.take(reversed([(start, 7) for start in opened]))
            transactions.take_open(others)
            opened = dict.fromkeys(opened, 7)
        offset += 1
        assert transactions.first_unstable == min((*opened, *ended.values()), default=None)
        first = min(opened, default=-1)
        assert transactions.first_open_but(first) == min((each for each in opened if each != first), default=None)
        assert transactions.oldest_producer == (opened[min(opened)] if opened else None)
        assert len(transactions) == len(opened)


def test_thousands_cost_no_more_each_than_a_few() -> None:
    """Each marker used to look at all that were open: this took minutes."""
    transactions = OpenTransactions()
    many = 100_000
    for start in range(many):
        transactions.begin(start, start)
    began = time.process_time()
    for start in range(many):
        assert transactions.first_open_but(start) == (start + 1 if start + 1 < many else None)
        transactions.end(start, many + start)
    for high in range(many, 2 * many):
        transactions.committed(high + 1)
    assert transactions.first_unstable is None
    assert time.process_time() - began < 5
