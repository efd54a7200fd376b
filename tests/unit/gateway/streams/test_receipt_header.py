"""The receipt of an append as a header."""

from __future__ import annotations

import json

from duramen.client.protocol.conditional_append import ConditionalAnswer
from duramen.errors import ErrorCode
from duramen.gateway.streams.receipt_header import receipt_header

STORED = ConditionalAnswer(ErrorCode.NONE, "", 10, 12, 13, 4, False, -1, -1, False, True, 3)


def test_a_receipt() -> None:
    found = json.loads(receipt_header(STORED)["stream-receipt"])
    assert found == {
        "offset": 10,
        "dlsn": "00000005-000000000000000a-00000000",
        "epoch": 4,
        "durability": "stable",
        "copies": 3,
    }
    assert '"page-cache"' in receipt_header(STORED._replace(is_stable=False))["stream-receipt"]


def test_the_time_that_a_topic_stamps() -> None:
    assert json.loads(receipt_header(STORED._replace(log_append_time_ms=7))["stream-receipt"])["timestamp"] == 7
    assigned = json.loads(receipt_header(STORED._replace(log_append_time_ms=7, last_txid=9))["stream-receipt"])
    assert (assigned["txid"], "timestamp" in assigned) == (7, False)


def test_none_where_the_place_is_not_known() -> None:
    assert receipt_header(STORED._replace(base_offset=-1, last_offset=-1)) == {}
    assert receipt_header(STORED._replace(leader_epoch=-1)) == {}
