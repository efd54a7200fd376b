"""Which content types of Confluent's version 2 are taken, and in which one an answer comes."""

from __future__ import annotations

import pytest

from duramen.gateway.confluent.v2_media_types import Embedded, answer_type, consumed_type, embedded_format
from duramen.gateway.edge.problem import ProblemError

V2 = "application/vnd.kafka.v2+json"


@pytest.mark.parametrize(
    ("content_type", "embedded"),
    [
        ("application/vnd.kafka.json.v2+json", "json"),
        ("application/vnd.kafka.binary.v2+json; charset=utf-8", "binary"),
        ("Application/Vnd.Kafka.JSON.v2+json", "json"),
        (V2, "binary"),
        ("application/vnd.kafka+json", "binary"),
        ("application/json", "binary"),
        ("application/octet-stream", "binary"),
        (None, "binary"),
    ],
)
def test_what_a_body_holds(content_type: str | None, embedded: str) -> None:
    assert embedded_format(content_type) == embedded


@pytest.mark.parametrize(
    "content_type",
    ["application/vnd.kafka.avro.v2+json", "application/vnd.kafka.protobuf.v2+json", "text/plain",
     "application/vnd.kafka.json.v1+json", "application/vnd.kafka.csv.v2+json", "application/x-www-form-urlencoded"],
)  # fmt: skip
def test_what_is_not_taken(content_type: str) -> None:
    with pytest.raises(ProblemError) as refused:
        embedded_format(content_type)
    assert refused.value.status == 415


@pytest.mark.parametrize(
    ("accept", "answered"),
    [
        (None, V2),
        ("*/*", V2),
        ("application/json", "application/json"),
        ("application/vnd.kafka+json, application/json;q=0.9", "application/vnd.kafka+json"),
        ("application/json; q=0.5, application/*; q=0.4", "application/json"),
        (f"text/html, {V2}; q=0.1", V2),
    ],
)
def test_the_type_of_an_answer(accept: str | None, answered: str) -> None:
    assert answer_type(accept) == answered


@pytest.mark.parametrize("accept", ["text/html", "application/json; q=0", "application/json;q=x"])
def test_an_answer_that_is_not_there(accept: str) -> None:
    with pytest.raises(ProblemError) as refused:
        answer_type(accept)
    assert refused.value.status == 406


@pytest.mark.parametrize(
    ("accept", "embedded", "answered"),
    [
        (None, "json", "application/vnd.kafka.json.v2+json"),
        ("*/*", "binary", "application/vnd.kafka.binary.v2+json"),
        ("application/vnd.kafka.json.v2+json", "json", "application/vnd.kafka.json.v2+json"),
        ("application/vnd.kafka.avro.v2+json, application/vnd.kafka+json", "json", "application/vnd.kafka+json"),
        (V2, "json", V2),
    ],
)
def test_the_type_of_records(accept: str | None, embedded: Embedded, answered: str) -> None:
    assert consumed_type(accept, embedded) == answered


@pytest.mark.parametrize(
    ("accept", "code"),
    [
        ("application/vnd.kafka.binary.v2+json", "another-format"),
        ("application/vnd.kafka.avro.v2+json", "another-format"),
        ("text/html", "not-acceptable"),
    ],
)
def test_records_that_are_not_there_in_a_type(accept: str, code: str) -> None:
    with pytest.raises(ProblemError) as refused:
        consumed_type(accept, "json")
    assert (refused.value.status, refused.value.code) == (406, code)
