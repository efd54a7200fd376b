"""Who a request says that it is, and how the numbers of requests and the log's sequences belong together."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duramen.gateway.edge.problem import ProblemError
from duramen.gateway.streams.writer_headers import NamedWriter, OpenedWriter, named_writer

CYCLE = 1 << 31


def headers(**given: str) -> dict[str, str]:
    return {f"producer-{name}": text for name, text in given.items()}


def test_all_or_none() -> None:
    assert named_writer({}) is None
    assert named_writer(headers(id="a", epoch="1", seq="9007199254740991")) == NamedWriter("a", 1, 2**53 - 1)


@pytest.mark.parametrize(
    "given",
    [
        headers(id="a"),
        headers(epoch="0", seq="0"),
        headers(id=" ", epoch="0", seq="0"),
        headers(id="a" * 1025, epoch="0", seq="0"),
        headers(id="a", epoch="32768", seq="0"),
        headers(id="a", epoch="0", seq="9007199254740992"),
        *(headers(id="a", epoch="0", seq=text) for text in ("-1", "1.0", "01", "1e3", "", "x", "٣")),
    ],
)
def test_others_are_refused(given: dict[str, str]) -> None:
    with pytest.raises(ProblemError) as refused:
        named_writer(given)
    assert refused.value.status == 400


@given(st.integers(0, 2**53 - 2), st.integers(1, 1000))
def test_numbers_go_on_behind_the_last_sequence(last: int, step: int) -> None:
    following = (last + 1) % CYCLE
    assert NamedWriter("a", 0, last + 1 + step).expected(following) == last + 1
    earlier = max(0, last - step)
    assert NamedWriter("a", 0, earlier).accepted(following) == last


@given(st.integers(0, 2**53 - 1), st.integers(-(2**29), 2**29))
def test_the_next_number_of_the_exclusive_writer(sequence: int, ahead: int) -> None:
    following = max(0, sequence + ahead)
    assert OpenedWriter(7, sequence).next(following % CYCLE) == following
