"""Expressions of groups: whole names, refusals, and no expression that takes more than its time."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest

from duramen.errors import ErrorCode, KafkaError
from duramen.machines.group.expressions import COUNT_MAX, LENGTH_MAX, check_count, compile_expression, resolve


def refused(text: str) -> str:
    with pytest.raises(KafkaError) as caught:
        compile_expression(text)
    assert caught.value.code == ErrorCode.INVALID_REGULAR_EXPRESSION
    return caught.value.message


def test_whole_names_match() -> None:
    matches = compile_expression("orders|clicks-.*")
    assert [name for name in ("orders", "orders-eu", "my-orders", "clicks-", "clicks") if matches(name)] == [
        "orders",
        "clicks-",
    ]
    assert compile_expression("")("") is True
    assert compile_expression("")("orders") is False


def test_what_re2_has_no_answer_for_is_refused() -> None:
    assert refused("(") == "SubscribedTopicRegex `(` is not a valid regular expression: missing ): (."
    assert "invalid escape sequence" in refused(r"(a)\1")
    assert "invalid perl operator" in refused("(?=a)")
    assert "invalid repetition" in refused("((a{1,1000}){1,1000}){1,1000}")


def test_a_long_one_is_refused_and_shown_in_part() -> None:
    assert len(refused("ä" * (LENGTH_MAX // 2 + 1))) < 400
    assert "longer than 32767 bytes" in refused("a" * (LENGTH_MAX + 1))


def test_one_that_needs_too_much_memory_is_refused() -> None:
    began = time.process_time()
    assert "too large" in refused("([a-z]{1000}|[0-9]{999}){1}" * 100)
    assert time.process_time() - began < 1


@pytest.mark.parametrize("text", ["(a+)+b", "(a|aa)+b", "(a|a)*b", "(.*)*b", "((((a*)*)*)*)*b"])
def test_expressions_that_backtracking_never_ends_with(text: str) -> None:
    """Python's `re` needs longer than the universe is old for these names; RE2 some microseconds."""
    began = time.process_time()
    matches = compile_expression(text)
    assert not matches("a" * 249)
    assert matches("a" * 248 + "b")
    assert time.process_time() - began < 0.5


def test_a_group_has_so_many_at_most() -> None:
    some = [f"a{number}" for number in range(COUNT_MAX)]
    check_count(some[1:], "another")
    check_count(some, some[0])
    with pytest.raises(KafkaError, match="its group has 100 others") as caught:
        check_count(some, "another")
    assert caught.value.code == ErrorCode.INVALID_REGULAR_EXPRESSION


def test_names_of_several() -> None:
    names = ["orders", "clicks", "orders-eu"]
    assert resolve(["orders.*", "c.*", "none", "("], names) == {
        "orders.*": ("orders", "orders-eu"),
        "c.*": ("clicks",),
        "none": (),
        "(": (),
    }


def test_ten_thousand_names() -> None:
    """About 30 ms: one thread can do it while the loop goes on."""
    names = [f"orders-of-the-year-2026-{number}" for number in range(10_000)]
    began = time.process_time()
    assert len(resolve(["(orders|clicks)-.*-[0-9]*7"], names)["(orders|clicks)-.*-[0-9]*7"]) == 1_000
    assert time.process_time() - began < 2


def test_the_library_is_loaded_at_the_first_expression() -> None:
    program = (
        "import sys, duramen.server.main, duramen.embedded, duramen.machines.group.expressions as expressions\n"
        "assert 're2' not in sys.modules\n"
        "expressions.compile_expression('a')\n"
        "assert 're2' in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
