"""Refusals over HTTP: a status, a code and what to do, sent as a problem of RFC 9457."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

MEDIA_TYPE = "application/problem+json"
SOON = {"retry-after": "1"}
"""Headers of what may succeed in a moment."""


class ProblemBody(msgspec.Struct, omit_defaults=True):
    """A problem as it travels. type: urn:duramen:<code>; retriable: whether the same request may succeed later."""

    type: str
    title: str
    status: int
    detail: str = ""
    kafka_error: str | None = None
    retriable: bool = False


class ProblemError(Exception):
    """A request that is refused. code names the kind (`no-such-stream`); headers go with the answer."""

    def __init__(
        self,
        status: int,
        code: str,
        detail: str,
        headers: Mapping[str, str] | None = None,
        *,
        kafka_error: str | None = None,
        retriable: bool = False,
    ) -> None:
        super().__init__(detail)
        self.status = status
        self.code = code
        self.detail = detail
        self.headers = dict(headers or {})
        self.kafka_error = kafka_error
        self.retriable = retriable

    def body(self) -> bytes:
        """The JSON that is sent."""
        title = self.code.replace("-", " ")
        return msgspec.json.encode(
            ProblemBody(f"urn:duramen:{self.code}", title, self.status, self.detail, self.kafka_error, self.retriable)
        )


def bad_request(field: str, why: str) -> ProblemError:
    """400 for a header, parameter or body; `field` names it."""
    return ProblemError(400, "bad-request", f"{field}: {why}")
