"""What producers of older versions of the protocol are told."""

from __future__ import annotations

import pytest
from rawclient import PRODUCE, Raw, batch
from tests.worlds.served_node import Served

from duramen.wire.batch import HEADER_SIZE, replace_payload
from duramen.wire.compression import ZSTD, compress
from duramen.wire.messages import API


@pytest.mark.parametrize(("version", "code"), [(3, 76), (6, 76), (7, 0), (8, 0)])
def test_zstd_needs_a_producer_that_knows_of_it(served: Served, version: int, code: int) -> None:
    request = API[PRODUCE].request
    zstd = replace_payload(batch(b"z"), ZSTD, compress(ZSTD, bytes(batch(b"z"))[HEADER_SIZE:]))
    with Raw(served.port) as raw:
        raw.create_topic(f"old-{version}")
        for data, expected in ((zstd, code), (batch(b"plain"), 0)):
            one = request.PartitionProduceData(index=0, records=bytes(data))
            topic = request.TopicProduceData(name=f"old-{version}", partition_data=[one])
            reply = raw.call(PRODUCE, version, acks=-1, timeout_ms=5000, topic_data=[topic])
            assert reply.responses[0].partition_responses[0].error_code == expected
