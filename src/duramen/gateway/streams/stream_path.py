"""The name of a stream: segments of a path over HTTP, one topic in the log."""

from __future__ import annotations

import re

from duramen.gateway.edge.problem import ProblemError

TOPIC_LENGTH_MAX = 249

_SEGMENT = re.compile(r"[A-Za-z0-9_-]+", re.ASCII)


def topic_of(path: str) -> str:
    """The topic of the stream a/b/c: a.b.c. Problem 400 where a segment may not be, 404 for a sub-resource."""
    segments = path.split("/")
    if segments[-1].startswith("."):
        raise ProblemError(
            404, "no-such-stream", f"{path}: there is no {segments[-1]} here; see docs/http.md for what is"
        )
    for segment in segments:
        if not _SEGMENT.fullmatch(segment):
            raise ProblemError(
                400, "bad-request", f"path: the segment {segment!r} of a stream is not of letters, digits, _ and -"
            )
    topic = ".".join(segments)
    if len(topic) > TOPIC_LENGTH_MAX:
        raise ProblemError(400, "bad-request", f"path: a stream's name has at most {TOPIC_LENGTH_MAX} characters")
    return topic
