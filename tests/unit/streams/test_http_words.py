"""What a gateway answers, in the words of the other back ends."""

from __future__ import annotations

import json

import pytest

from duramen.client.protocol.outcomes import may_help
from duramen.client.protocol.positions import BelowStartError, DlsnDivergedError
from duramen.dlsn import FIRST, Dlsn
from duramen.errors import ErrorCode, NetworkError
from duramen.streams.http_words import (
    GatewayAnswer,
    GatewayError,
    append_answer,
    append_refusal,
    lines_of,
    lookup_refusal,
    stretch_in,
)
from duramen.streams.records import StreamSpot

SPOT = StreamSpot(0, FIRST)
BEHIND = "00000003-0000000000000004-00000002"


def problem(status: int, code: str, retriable: bool = False, kafka: str | None = None, **headers: str) -> GatewayError:
    body = {"type": f"urn:duramen:{code}", "detail": "why", "retriable": retriable, "kafka_error": kafka}
    return GatewayError(
        GatewayAnswer(
            status, {key.replace("_", "-"): value for key, value in headers.items()}, json.dumps(body).encode()
        )
    )


def test_a_record_goes_over_as_it_is() -> None:
    line = json.loads(lines_of([(None, b"\xff", [(b"h", None), (b"g", b"\0")], 7)]))
    assert line == {
        "key": None,
        "value": "/w==",
        "timestamp": 7,
        "headers": [
            {"name": "h", "value": None, "encoding": "base64"},
            {"name": "g", "value": "AA==", "encoding": "base64"},
        ],
    }


def test_what_was_read_is_records_and_the_place_behind_them() -> None:
    line = (
        b'{"offset":4,"dlsn":"00000003-0000000000000004-00000000","txid":9,"key":"k","key_encoding":"string",'
        b'"value":"/w==","headers":[{"name":"h","value":null}]}\n'
    )
    stretch = stretch_in(GatewayAnswer(200, {"stream-next-offset": BEHIND, "stream-closed": "true"}, line), SPOT)
    (batch,) = stretch.batches
    (record,) = batch.records
    assert (record.offset, record.txid, record.key, record.value) == (4, 9, b"k", b"\xff")
    assert record.headers == (("h", None),)
    assert (batch.leader_epoch, batch.closes, stretch.next.offset) == (2, True, 6)


@pytest.mark.parametrize("body", [b"<html>", b"[]", b'{"offset":1}'])
def test_an_answer_of_something_else_is_no_answer(body: bytes) -> None:
    with pytest.raises(NetworkError, match="not of a gateway"):
        stretch_in(GatewayAnswer(200, {"stream-next-offset": BEHIND}, body), SPOT)
    with pytest.raises(NetworkError, match="not of a gateway"):
        stretch_in(GatewayAnswer(200, {}, b""), SPOT)


def test_receipts_and_refusals_are_those_of_a_leader() -> None:
    receipt = '{"offset":4,"dlsn":"x","epoch":2,"durability":"page-cache","copies":3}'
    stored = append_answer(GatewayAnswer(200, {"stream-next-offset": BEHIND, "stream-receipt": receipt}, b""), 2)
    assert (stored.base_offset, stored.last_offset, stored.end_offset, stored.duplicate) == (4, 5, 6, False)
    assert (stored.leader_epoch, stored.is_stable, stored.copies) == (2, False, 3)
    again = append_answer(GatewayAnswer(204, {"stream-next-offset": BEHIND}, b""), 2)
    assert (again.base_offset, again.duplicate) == (-1, True)
    moved = append_refusal(problem(409, "end-is-elsewhere", stream_next_offset=BEHIND))
    assert (moved.code, moved.end_offset) == (ErrorCode.END_IS_ELSEWHERE, 6)
    older = append_refusal(problem(403, "writer-fenced", producer_epoch="8"))
    assert (older.code, older.writer_epoch) == (ErrorCode.INVALID_PRODUCER_EPOCH, 8)
    assert append_refusal(problem(403, "writer-fenced")).code is ErrorCode.PRODUCER_FENCED
    gap = append_refusal(problem(409, "sequence", producer_expected_seq="5"))
    assert (gap.code, gap.expected_sequence) == (ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, 5)
    late = append_refusal(problem(409, "txid-out-of-order", stream_last_txid="20"))
    assert (late.code, late.last_txid) == (ErrorCode.TXID_OUT_OF_ORDER, 20)
    with pytest.raises(GatewayError):
        append_refusal(problem(503, "node-away"))


def test_positions_that_cannot_be_read_from() -> None:
    below = lookup_refusal(problem(410, "truncated", stream_next_offset=BEHIND), 1)
    assert isinstance(below, BelowStartError)
    assert below.first.offset == 6
    assert isinstance(lookup_refusal(problem(409, "position-diverged"), Dlsn(9, 1, 0)), DlsnDivergedError)
    above = lookup_refusal(problem(409, "position-diverged"), 17)
    assert above.code is ErrorCode.OFFSET_OUT_OF_RANGE


@pytest.mark.parametrize(
    ("error", "code", "helps"),
    [
        (problem(404, "no-such-stream"), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, False),
        (problem(400, "bad-request", kafka="INVALID_CONFIG"), ErrorCode.INVALID_CONFIG, False),
        (problem(503, "overloaded", True), ErrorCode.REQUEST_TIMED_OUT, True),
        (problem(504, "outcome-unknown"), ErrorCode.REQUEST_TIMED_OUT, True),
        (problem(500, "bug"), ErrorCode.UNKNOWN_SERVER_ERROR, False),
        (GatewayError(GatewayAnswer(404, {}, b"")), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, False),
        (GatewayError(GatewayAnswer(502, {}, b"<html>")), ErrorCode.REQUEST_TIMED_OUT, True),
        (GatewayError(GatewayAnswer(400, {}, b"[]")), ErrorCode.UNKNOWN_SERVER_ERROR, False),
    ],
)
def test_problems_have_a_code_and_say_whether_to_try_again(error: GatewayError, code: ErrorCode, helps: bool) -> None:
    assert (error.code, may_help(error)) == (code, helps)


def test_who_may_not_is_told_what_is_missing() -> None:
    nobody = GatewayError(GatewayAnswer(401, {}, b""), "HEAD /v1/stream/s")
    assert (nobody.code, may_help(nobody)) == (ErrorCode.SASL_AUTHENTICATION_FAILED, False)
    assert "HEAD /v1/stream/s: the gateway needs a bearer token" in str(nobody)
    assert "token=, or in DURAMEN_TOKEN" in str(nobody)
    assert "does not know the bearer token" in str(GatewayError(nobody.answer, has_token=True))
    refused = problem(403, "not-allowed")
    assert (refused.code, str(refused)) == (ErrorCode.TOPIC_AUTHORIZATION_FAILED, "why")
    unsaid = GatewayError(GatewayAnswer(403, {}, b""), "HEAD /v1/stream/s", has_token=True)
    assert (unsaid.code, may_help(unsaid)) == (ErrorCode.TOPIC_AUTHORIZATION_FAILED, False)
    assert "lacks the permission read=" in str(unsaid)
    assert "gateway.hosts" in str(GatewayError(GatewayAnswer(421, {}, b""), "HEAD /v1/stream/s"))
    assert "answered 403" in str(GatewayError(GatewayAnswer(403, {}, b"by a proxy"), "POST /v1/stream/s"))
    moved = GatewayError(GatewayAnswer(301, {"location": "https://a/"}, b""), "HEAD /v1/stream/s")
    assert "answered 301 (moved to 'https://a/')" in str(moved)
    assert not may_help(moved)
