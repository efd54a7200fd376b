"""What is said on the WebSocket of a reader: where it begins, credits, records, what went wrong. Pure.

The reader sends {"from": ...} once, then {"credits": n} as often as it likes. A record takes a credit; without one left
nothing is sent.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

import msgspec

from duramen.gateway.edge.problem import ProblemError, bad_request
from duramen.gateway.edge.request_json import decoded_json
from duramen.gateway.tails.reader_start import ReaderStart
from duramen.gateway.tails.record_form import RecordEncoding
from duramen.gateway.tails.record_match import HEADER_PREFIX, record_match

CREDITS: Final = 1000
"""Of a reader that names none."""
CREDITS_MAX: Final = 1_000_000
"""What a reader may have at a time."""

CLOSE_BASE: Final = 4000
"""The close code of a problem is this and its status; codes from 4000 on are an application's own (RFC 6455)."""

_BURST: Final = 100
_PER_S: Final = 50


class SocketStart(msgspec.Struct, forbid_unknown_fields=True):
    """The first message. from: a position, -1 (the beginning) or now; partition: of a topic, None for all.

    key, headers: what the records that are wanted have, all of it.
    """

    position: str = msgspec.field(name="from")
    encoding: RecordEncoding = "json"
    credits: Annotated[int, msgspec.Meta(ge=0, le=CREDITS_MAX)] = CREDITS
    on_truncated: Literal["fail", "advance"] = "fail"
    key: str | None = None
    headers: dict[str, str] = {}
    partition: Annotated[int, msgspec.Meta(ge=0, lt=1 << 31)] | None = None

    def reader_start(self) -> ReaderStart:
        """The same for `TopicReaders`."""
        wanted = [("key", self.key)] if self.key is not None else []
        wanted += [(f"{HEADER_PREFIX}{name}", value) for name, value in self.headers.items()]
        advance = self.on_truncated == "advance"
        return ReaderStart(self.position, "from", self.encoding, advance, record_match(wanted), self.partition)


class SocketCredits(msgspec.Struct, forbid_unknown_fields=True):
    """Each later one. credits: how many records more may be sent."""

    credits: Annotated[int, msgspec.Meta(ge=1, le=CREDITS_MAX)]


_START = msgspec.json.Decoder(SocketStart)
_CREDITS = msgspec.json.Decoder(SocketCredits)


def parse_start(message: str | bytes) -> SocketStart:
    """What the first message asks for. Problem 400."""
    return decoded_json(message, _START, "message", '{"from": "-1"}')


class ReaderCredits:
    """How many records may be sent to a reader, and how many messages it has sent lately. Time (s) is an argument."""

    def __init__(self, left: int, now_s: float) -> None:
        self.left = left
        self._room: float = _BURST
        self._at_s = now_s

    def hear(self, message: str | bytes, now_s: float) -> None:
        """A message of the reader. Problem 400 for one that gives no credits, 429 for one of too many."""
        self._room = min(_BURST, self._room + (now_s - self._at_s) * _PER_S)
        self._at_s = now_s
        if self._room < 1:
            raise ProblemError(429, "quota", f"{_PER_S} messages a second are as many as a reader may send")
        self._room -= 1
        more = decoded_json(message, _CREDITS, "message", '{"credits": 100}').credits
        if self.left + more > CREDITS_MAX:
            raise bad_request("credits", f"a reader has at most {CREDITS_MAX} at a time")
        self.left += more

    def take(self, records: int) -> None:
        """So many records are sent."""
        self.left -= records


def records_message(
    lines: bytes, position: str, credits: int, *, up_to_date: bool, closed: bool, advanced: bool
) -> str:
    """Records (lines of NDJSON), the position after them, and the credits that are left."""
    tail: dict[str, str | int | bool] = {"position": position, "credits": credits}
    for name, holds in (("up_to_date", up_to_date), ("closed", closed), ("advanced", advanced)):
        if holds:
            tail[name] = True
    records = lines[:-1].replace(b"\n", b",")
    return (b'{"records":[' + records + b"]," + msgspec.json.encode(tail)[1:]).decode()


def problem_message(problem: ProblemError) -> str:
    """What went wrong. position: where to go on, in some problems."""
    found: dict[str, msgspec.Raw | str] = {"problem": msgspec.Raw(problem.body())}
    if "stream-next-offset" in problem.headers:
        found["position"] = problem.headers["stream-next-offset"]
    return msgspec.json.encode(found).decode()


def close_code(problem: ProblemError) -> int:
    """The code with which the connection is closed after a problem: 1008 for a flood, else 4000 and the status."""
    return 1008 if problem.status == 429 else CLOSE_BASE + problem.status
