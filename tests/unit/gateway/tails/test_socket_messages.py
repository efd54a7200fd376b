"""What is said on a WebSocket: credits, floods, records as one JSON text, problems with their close codes."""

from __future__ import annotations

import json

import pytest

from duramen.gateway.edge.problem import ProblemError
from duramen.gateway.tails.socket_messages import (
    CREDITS,
    CREDITS_MAX,
    ReaderCredits,
    close_code,
    parse_start,
    problem_message,
    records_message,
)


def test_the_first_message() -> None:
    assert parse_start('{"from": "-1"}').credits == CREDITS
    start = parse_start(b'{"from": "now", "encoding": "base64", "credits": 0, "on_truncated": "advance"}')
    assert (start.position, start.encoding, start.credits, start.on_truncated) == ("now", "base64", 0, "advance")


@pytest.mark.parametrize(
    ("message", "field"),
    [
        ("{}", "from"),
        ('{"from": 1}', "from"),
        ('{"from": "-1", "credits": -1}', "credits"),
        ('{"from": "-1", "credits": 1000001}', "credits"),
        ('{"from": "-1", "encoding": "avro"}', "encoding"),
        ('{"from": "-1", "offset": 1}', "offset"),
        (b"\xff", "message"),
        ("[" * 100_000, "message"),
        ("hello", "message"),
    ],
)
def test_what_is_no_first_message_is_refused(message: str | bytes, field: str) -> None:
    with pytest.raises(ProblemError, match=field):
        parse_start(message)


def test_credits() -> None:
    credits = ReaderCredits(2, 0.0)
    credits.take(2)
    credits.hear('{"credits": 5}', 0.0)
    assert credits.left == 5
    for message in ('{"credits": 0}', '{"credits": 1.5}', "{}", f'{{"credits": {CREDITS_MAX}}}'):
        with pytest.raises(ProblemError, match="credits"):
            credits.hear(message, 0.0)
    assert credits.left == 5


def test_a_flood_ends_and_steady_messages_do_not() -> None:
    steady = ReaderCredits(0, 0.0)
    for number in range(1000):
        steady.hear('{"credits": 1}', number / 50)
    flood = ReaderCredits(0, 0.0)
    for _ in range(100):
        flood.hear('{"credits": 1}', 1.0)
    with pytest.raises(ProblemError) as refused:
        flood.hear('{"credits": 1}', 1.0)
    assert close_code(refused.value) == 1008


def test_records_are_one_text() -> None:
    text = records_message(b'{"offset":1}\n{"offset":2}\n', "p", 7, up_to_date=True, closed=False, advanced=False)
    assert json.loads(text) == {
        "records": [{"offset": 1}, {"offset": 2}],
        "position": "p",
        "credits": 7,
        "up_to_date": True,
    }
    none = json.loads(records_message(b"", "p", 0, up_to_date=False, closed=True, advanced=True))
    assert (none["records"], none["closed"], none["advanced"]) == ([], True, True)


def test_a_problem_says_where_to_go_on() -> None:
    problem = ProblemError(410, "truncated", "it is gone", {"stream-next-offset": "there"})
    shown = json.loads(problem_message(problem))
    assert (shown["problem"]["type"], shown["position"], close_code(problem)) == (
        "urn:duramen:truncated",
        "there",
        4410,
    )
