"""The log says once for each transactional id that transactions are not served, and not for ever more of them."""

from __future__ import annotations

from typing import Any

import pytest
from tests.worlds.broker_world import InProcess

from duramen.errors import ErrorCode
from duramen.server.api import refused_transactions

TRANSACTION = 1


def told(server: InProcess) -> list[dict[str, Any]]:
    return [fields for event, fields in server.events if event == "transactions-refused"]


def test_each_id_is_told_once_whatever_asks() -> None:
    server = InProcess()
    for key in ("a", "b", "a"):
        server.connect().call(10, 6, key_type=TRANSACTION, coordinator_keys=[key])
    for transactional_id in ("b", "c", "c"):
        reply = server.connect().call(
            22, 5, transactional_id=transactional_id, transaction_timeout_ms=1, producer_id=-1, producer_epoch=-1
        )
        assert reply.error_code == ErrorCode.INVALID_TXN_STATE
    assert [one["transactional_id"] for one in told(server)] == ["a", "b", "c"]
    assert told(server)[0]["reason"] == "transactions are not served in this release"


def test_groups_sinks_and_plain_producers_are_no_word() -> None:
    server = InProcess()
    server.connect().call(10, 6, key_type=0, coordinator_keys=["a"])
    server.connect().call(10, 6, key_type=100, coordinator_keys=["b"])
    fields: dict[str, Any] = {"transaction_timeout_ms": 1, "producer_id": -1, "producer_epoch": -1}
    server.connect().call(22, 5, transactional_id=None, **fields)
    server.connect().call(22, 5, transactional_id="", **fields)
    assert told(server) == []


def test_what_is_remembered_has_a_bound_and_the_last_line_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(refused_transactions, "MOST_IDS", 3)
    server = InProcess()
    for number in range(6):
        server.connect().call(10, 6, key_type=TRANSACTION, coordinator_keys=[f"{number}" + "x" * 30_000])
    lines = told(server)
    assert [one["transactional_id"][0] for one in lines] == ["0", "1", "2"]
    assert ["more" in one for one in lines] == [False, False, True]
    assert max(len(one["transactional_id"]) for one in lines) == refused_transactions.SHOWN_CHARACTERS


def test_a_request_about_very_many_ids_is_not_looked_through() -> None:
    server = InProcess()
    server.connect().call(10, 6, key_type=TRANSACTION, coordinator_keys=[f"{number}" for number in range(5_000)])
    assert len(told(server)) == refused_transactions.MOST_OF_A_REQUEST
