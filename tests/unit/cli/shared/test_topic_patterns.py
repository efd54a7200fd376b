"""Patterns in the place of topics' names."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click
import pytest

from duramen.cli.main import main
from duramen.cli.shared.topic_patterns import is_pattern, matching

KNOWN = ["__consumer_offsets", "__mine", "orders.a", "orders.b", "orders_x"]
SHOWN = KNOWN[1:]


@pytest.mark.parametrize(
    ("patterns", "chosen", "told"),
    [
        (["orders.*"], ["orders.a", "orders.b"], ""),
        (["orders?[ab]"], ["orders.a", "orders.b"], ""),
        (["*x", "orders.b", "orders.*"], ["orders.a", "orders.b", "orders_x"], ""),
        (["__*"], ["__mine"], ""),
        (["__c*"], [], "no topic matches '__c*'; internal ones do, which --internal shows\n"),
        (["__consumer_offsets"], ["__consumer_offsets"], ""),
        (["nosuch", "z*", "__m*"], ["__mine"], "no topic matches 'nosuch'\nno topic matches 'z*'\n"),
        (["ORDERS*"], [], "no topic matches 'ORDERS*'\n"),
    ],
)
def test_topics_are_chosen_by_names_and_patterns(
    patterns: list[str], chosen: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert matching(SHOWN, KNOWN, patterns) == chosen
    assert capsys.readouterr().err == told


def test_a_regular_expression_is_told_how_patterns_are_written() -> None:
    with pytest.raises(click.UsageError, match=r"a pattern is written with \* and \?"):
        is_pattern("^orders.*")


def test_topic_list_shows_those_of_a_name(
    run: Callable[..., Any], topic: str, capsys: pytest.CaptureFixture[str]
) -> None:
    run("topic", "create", f"{topic}.a", f"{topic}.b", topic)
    assert [row["topic"] for row in run("topic", "list", f"{topic}.*", "--json")] == [f"{topic}.a", f"{topic}.b"]
    assert [line.split()[0] for line in run("topic", "list", topic).splitlines()] == ["TOPIC", topic]
    assert main(["topic", "list", f"{topic}-*"]) == 0
    said = capsys.readouterr()
    assert (said.out, said.err) == ("", f"no topic matches '{topic}-*'\n")
    assert run("topic", "list", f"{topic}-*", "--json") == []
