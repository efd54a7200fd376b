"""What a new consumer is to be."""

from __future__ import annotations

import pytest

from duramen.gateway.consumers.consumer_settings import ConsumerSettings, consumer_settings
from duramen.gateway.edge.problem import ProblemError


@pytest.mark.parametrize(
    ("body", "settings"),
    [
        (b"", ConsumerSettings("", "binary", "latest", True, 1, 1000)),
        (b"{}", ConsumerSettings("", "binary", "latest", True, 1, 1000)),
        (
            b'{"name": "c", "format": "json", "auto.offset.reset": "earliest", "fetch.min.bytes": "5"}',
            ConsumerSettings("c", "json", "earliest", True, 5, 1000),
        ),
        (
            b'{"auto.commit.enable": "false", "consumer.request.timeout.ms": 0}',
            ConsumerSettings("", "binary", "latest", False, 1, 0),
        ),
        (
            b'{"id": "d", "auto.offset.reset": "smallest", "auto.commit.enable": true, "fetch.min.bytes": -1}',
            ConsumerSettings("d", "binary", "earliest", True, 1, 1000),
        ),
        (b'{"id": "d", "name": "c"}', ConsumerSettings("d", "binary", "latest", True, 1, 1000)),
    ],
)
def test_settings(body: bytes, settings: ConsumerSettings) -> None:
    assert consumer_settings(body) == settings


@pytest.mark.parametrize(
    ("body", "status", "why"),
    [
        (b"[]", 400, "body"),
        (b"{", 400, "body"),
        (b'{"name": "a/b"}', 422, "name"),
        (b'{"name": ".."}', 422, "name"),
        (b'{"name": 7}', 422, "name"),
        (b'{"name": "%s"}' % (b"x" * 201), 422, "name"),
        (b'{"format": "avro"}', 422, "schema registry"),
        (b'{"format": "xml"}', 422, "format"),
        (b'{"format": ["binary"]}', 422, "format"),
        (b'{"auto.offset.reset": "never"}', 422, "auto.offset.reset"),
        (b'{"auto.commit.enable": 1}', 422, "auto.commit.enable"),
        (b'{"auto.commit.enable": {}}', 422, "auto.commit.enable"),
        (b'{"fetch.min.bytes": 1.5}', 422, "fetch.min.bytes"),
        (b'{"fetch.min.bytes": "99999999999"}', 422, "fetch.min.bytes"),
        (b'{"consumer.request.timeout.ms": true}', 422, "consumer.request.timeout.ms"),
        (b'{"group.instance.id": "x"}', 422, "group.instance.id"),
    ],
)
def test_what_may_not_be(body: bytes, status: int, why: str) -> None:
    with pytest.raises(ProblemError) as refused:
        consumer_settings(body)
    assert refused.value.status == status
    assert why in refused.value.detail
