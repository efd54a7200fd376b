"""What a gateway is sent and answers, in the words of the other back ends: records as lines, and problems. Pure."""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

from duramen.client.protocol.positions import BelowStartError, DlsnDivergedError, LogPlace
from duramen.dlsn import Dlsn, parse_dlsn
from duramen.errors import DuramenError, ErrorCode, KafkaError, NetworkError
from duramen.model import NO_TIMESTAMP
from duramen.streams.errors import AppendTooLargeError
from duramen.streams.records import Row, StoredBatch, StreamRecord, StreamSpot, Stretch
from duramen.wire.conditional_answer import ConditionalAnswer

_ERRORS: Final = {
    "no-such-stream": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    "exists": ErrorCode.TOPIC_ALREADY_EXISTS,
    "closed": ErrorCode.STREAM_CLOSED,
    "end-is-elsewhere": ErrorCode.END_IS_ELSEWHERE,
    "sequence": ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
    "writer-fenced": ErrorCode.PRODUCER_FENCED,
    "txid-out-of-order": ErrorCode.TXID_OUT_OF_ORDER,
    "position-diverged": ErrorCode.OFFSET_OUT_OF_RANGE,
    "truncated": ErrorCode.OFFSET_OUT_OF_RANGE,
    "record-too-large": ErrorCode.MESSAGE_TOO_LARGE,
    "body-too-large": ErrorCode.MESSAGE_TOO_LARGE,
    "not-allowed": ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    "bad-request": ErrorCode.INVALID_REQUEST,
}
_STATUSES: Final = {
    401: ErrorCode.SASL_AUTHENTICATION_FAILED,
    403: ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    404: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
}
_UNSAID: Final = {
    403: "the token lacks the permission read= there",
    421: "the gateway is not addressed by a name of its own (gateway.hosts)",
}
"""What a status says to HEAD, whose answers have no problem that would say more."""
_ANSWERS: Final = frozenset(
    (
        "closed",
        "end-is-elsewhere",
        "position-diverged",
        "sequence",
        "writer-fenced",
        "txid-out-of-order",
        "record-too-large",
    )
)
"""Problems of an append that are answers, as a leader gives them."""


class GatewayAnswer(NamedTuple):
    """headers: by small letters."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def next(self) -> Dlsn:
        """The position after what was read or written."""
        return parse_dlsn(self.headers["stream-next-offset"])

    @property
    def is_closed(self) -> bool:
        return self.headers.get("stream-closed") == "true"

    def json(self) -> Any:
        """What the body says. NetworkError for one that is no JSON, which no gateway sends."""
        try:
            return json.loads(self.body)
        except ValueError as error:
            raise NetworkError(f"the answer is not of a gateway: {error}") from None


class GatewayError(KafkaError):
    """A problem that a gateway answered with; `answer` has its headers. asked: method and path, has_token: whether the
    request had one, for the message."""

    def __init__(self, answer: GatewayAnswer, asked: str = "a request", *, has_token: bool = False) -> None:
        try:
            found = json.loads(answer.body or b"{}")
        except ValueError:
            found = {}
        problem = found if isinstance(found, dict) else {}
        self.problem = str(problem.get("type", "")).removeprefix("urn:duramen:")
        self.answer = answer
        # A balancer in front of gateways answers so while one of them starts anew.
        is_passing = answer.status in (503, 504) or (not self.problem and answer.status in (429, 502))
        self._is_retriable = bool(problem.get("retriable")) or is_passing
        code = _ERRORS.get(self.problem)
        named = str(problem.get("kafka_error"))
        if named in ErrorCode.__members__ and self.problem in ("bad-request", "refused", "not-allowed", "exists"):
            code = ErrorCode[named]
        if answer.status in (401, 404) or code is None:
            code = _STATUSES.get(answer.status, code)
        if code is None:
            code = ErrorCode.REQUEST_TIMED_OUT if self._is_retriable else ErrorCode.UNKNOWN_SERVER_ERROR
        super().__init__(
            code, _login_needed(asked, has_token) if answer.status == 401 else _detail(problem, answer, asked)
        )

    @property
    def retriable(self) -> bool:
        """As the gateway says."""
        return self._is_retriable


def _login_needed(asked: str, has_token: bool) -> str:
    said = "the gateway does not know the bearer token" if has_token else "the gateway needs a bearer token"
    return f"{asked}: {said}; give one that `duramen gateway token` made as token=, or in DURAMEN_TOKEN"


def _detail(problem: Mapping[str, Any], answer: GatewayAnswer, asked: str) -> str:
    if problem.get("detail"):
        return str(problem["detail"])
    moved = f" (moved to {answer.headers['location']!r:.200})" if "location" in answer.headers else ""
    unsaid = _UNSAID.get(answer.status) if asked.startswith("HEAD ") else None
    return f"{asked}: {unsaid or f'the gateway answered {answer.status}{moved}'}"


# ---- appends -------------------------------------------------------------------------------------------------


def lines_of(rows: Iterable[Row]) -> bytes:
    """Records as a gateway takes them."""
    return b"".join(json.dumps(_line(row)).encode() + b"\n" for row in rows)


def _line(row: Row) -> dict[str, object]:
    key, value, headers, timestamp = row
    line: dict[str, object] = {"key": _shown(key), "value": _shown(value)}
    if timestamp != NO_TIMESTAMP:
        line["timestamp"] = timestamp
    if headers:
        line["headers"] = [
            {"name": name.decode(), "value": _shown(content), "encoding": "base64"} for name, content in headers
        ]
    return line


def _shown(content: bytes | None) -> str | None:
    return None if content is None else b64encode(content).decode()


def append_answer(answer: GatewayAnswer, count: int) -> ConditionalAnswer:
    """Of an append that took effect. count: of its records, 0 to close alone."""
    text = answer.headers.get("stream-receipt")
    receipt = json.loads(text) if text else {}
    base = receipt.get("offset", -1)
    return ConditionalAnswer(
        ErrorCode.NONE,
        "",
        base,
        base + count - 1 if base >= 0 else -1,
        answer.next.offset,
        receipt.get("epoch", -1),
        bool(count) and answer.status == 204,
        -1,
        -1,
        answer.is_closed,
        receipt.get("durability", "stable") == "stable",
        receipt.get("copies", 0),
        log_append_time_ms=receipt.get("timestamp", -1),
        end_epoch=answer.next.leader_epoch,
    )


def append_refusal(error: GatewayError) -> ConditionalAnswer:
    """Of one that was refused, as its leader would say it. The error itself, where that is none of its refusals."""
    if error.problem not in _ANSWERS:
        raise error
    headers = error.answer.headers
    code = error.code
    if error.problem == "writer-fenced" and "producer-epoch" in headers:
        code = ErrorCode.INVALID_PRODUCER_EPOCH
    end = parse_dlsn(headers["stream-next-offset"]) if "stream-next-offset" in headers else None
    expected = headers.get("producer-expected-seq") or headers.get("stream-writer-next-seq") or "-1"
    return ConditionalAnswer(
        code,
        error.message,
        -1,
        -1,
        end.offset if end else -1,
        -1,
        False,
        int(expected),
        int(headers.get("producer-epoch", "-1")),
        error.answer.is_closed,
        True,
        0,
        int(headers.get("stream-last-txid", "-1")),
        end_epoch=end.leader_epoch if end else -1,
    )


def body_too_large(topic: str, error: GatewayError, records: int, size: int) -> AppendTooLargeError:
    """Of an append whose body a gateway does not take. size: of the body."""
    limit = int(error.answer.headers.get("stream-body-max-bytes", "-1"))
    taken = f"at most {limit}" if limit >= 0 else "less"
    what = f"{records} records are" if records > 1 else "the record is"
    text = f"{topic}: {what} a request of {size} bytes; the gateway takes {taken} (gateway.body.max.bytes)"
    return AppendTooLargeError(text, records, size, limit)


def moved_answer(message: str, end: int) -> ConditionalAnswer:
    """That the stream ends elsewhere than was expected."""
    return ConditionalAnswer(ErrorCode.END_IS_ELSEWHERE, message, -1, -1, end, -1, False, -1, -1, False, True, 0)


# ---- reading -------------------------------------------------------------------------------------------------


def stretch_in(answer: GatewayAnswer, spot: StreamSpot) -> Stretch:
    """The records that were read at a spot. NetworkError for what is no answer of a gateway."""
    try:
        records = [_record(json.loads(line)) for line in answer.body.splitlines()]
        following = answer.next
    except (ValueError, KeyError, TypeError) as error:
        raise NetworkError(f"the answer is not of a gateway: {error!r}") from None
    batches = []
    if records or answer.is_closed:
        epoch = records[0].dlsn.leader_epoch if records else spot.dlsn.leader_epoch
        batches.append(StoredBatch(epoch, records, answer.is_closed))
    return Stretch(batches, StreamSpot(following.offset, following, stream_id=spot.stream_id))


def _record(line: Mapping[str, Any]) -> StreamRecord:
    headers = tuple((each["name"], _content(each["value"], "base64")) for each in line["headers"])
    return StreamRecord(
        line["offset"],
        parse_dlsn(line["dlsn"]),
        line["txid"] if "txid" in line else line["timestamp"],
        _content(line["key"], line.get("key_encoding", "base64")),
        _content(line["value"], line.get("value_encoding", "base64")),
        headers,
    )


def _content(text: str | None, encoding: str) -> bytes | None:
    if text is None:
        return None
    return b64decode(text, validate=True) if encoding == "base64" else text.encode()


def spot_in(body: Mapping[str, Any], stream_id: str = "") -> StreamSpot:
    """A position that was looked up."""
    return StreamSpot(body["offset"], parse_dlsn(body["dlsn"]), bool(body.get("at_end")), stream_id)


def lookup_refusal(error: GatewayError, wanted: Dlsn | int) -> DuramenError:
    """Of a position that cannot be read from, as `find_place` says it."""
    if error.problem == "truncated":
        first = error.answer.next
        return BelowStartError(wanted, LogPlace(first.offset, first, False, first.offset, -1))
    if error.problem == "position-diverged" and isinstance(wanted, Dlsn):
        return DlsnDivergedError(wanted, error.message)
    return error
