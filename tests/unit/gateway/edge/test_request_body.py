"""Bodies in pieces: so many at a time, so many bytes in all, and nothing of them counted when it is over."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

import pytest
from starlette.requests import Request

from duramen.gateway.confluent.concatenated_json import ConcatenatedJson
from duramen.gateway.edge.limits import Allowance
from duramen.gateway.edge.problem import ProblemError
from duramen.gateway.edge.request_body import PIECES_AT_ONCE, BodyCutter, LineCutter, RequestBodies


def cut(parts: Iterable[bytes], cutter: BodyCutter, max_bytes: int, unanswered: Allowance) -> list[list[bytes]]:
    """The pieces of a body that comes in these parts."""
    messages = [{"type": "http.request", "body": part, "more_body": True} for part in parts]
    messages.append({"type": "http.request", "body": b"", "more_body": False})

    async def receive() -> dict[str, object]:
        return messages.pop(0)

    async def run() -> list[list[bytes]]:
        request = Request({"type": "http", "method": "POST", "headers": []}, receive)
        return [some async for some in RequestBodies(max_bytes, 5.0, unanswered).pieces(request, cutter)]

    return asyncio.run(run())


def test_lines_in_any_parts() -> None:
    unanswered = Allowance("bytes", 1000)
    assert cut([b"a\n\n b", b"c\nd", b"", b"e\r\n\nf"], LineCutter(), 100, unanswered) == [
        [b"a", b""],
        [b" bc"],
        [b"de\r", b""],
        [b"f"],
    ]
    assert unanswered.taken == 0


def test_so_many_pieces_at_a_time() -> None:
    unanswered = Allowance("bytes", 1 << 20)
    found = cut([b"{}" * (2 * PIECES_AT_ONCE + 1)], ConcatenatedJson(), 100, unanswered)
    assert [len(some) for some in found] == [PIECES_AT_ONCE, PIECES_AT_ONCE, 1]
    assert unanswered.taken == 0


@pytest.mark.parametrize(
    ("parts", "most", "status"),
    [
        ([b"{}{" + b" " * 99, b"  }"], 1 << 20, 413),
        ([b"{" + b" " * 99 + b"}"], 1 << 20, 413),
        ([b"{}" * 100], 4000, 503),
    ],
)
def test_too_much(parts: list[bytes], most: int, status: int) -> None:
    unanswered = Allowance("bytes", most)
    with pytest.raises(ProblemError) as refused:
        cut(parts, ConcatenatedJson(), 100, unanswered)
    assert refused.value.status == status
    assert unanswered.taken == 0
