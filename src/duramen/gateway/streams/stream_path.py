"""The name of a stream: segments of a path over HTTP, one topic in the log."""

from __future__ import annotations

from duramen.client.protocol.stream_names import OUR_OWN, SEGMENT, TOPIC_LENGTH_MAX
from duramen.gateway.edge.problem import ProblemError
from duramen.model import INTERNAL_TOPICS


def topic_of(path: str) -> str:
    """The topic of the stream a/b/c: a.b.c. Problem 400 where a segment may not be, 404 for a sub-resource."""
    segments = path.split("/")
    if segments[-1].startswith("."):
        raise ProblemError(
            404, "no-such-stream", f"{path}: there is no {segments[-1]} here; see docs/http.md for what is"
        )
    for segment in segments:
        if not SEGMENT.fullmatch(segment):
            raise ProblemError(
                400, "bad-request", f"path: the segment {segment!r} of a stream is not of letters, digits, _ and -"
            )
    if path.startswith(OUR_OWN):
        raise ProblemError(400, "bad-request", f"path: names that begin with {OUR_OWN} are kept for the system")
    topic = ".".join(segments)
    if topic in INTERNAL_TOPICS:
        raise ProblemError(400, "bad-request", f"path: {topic} is a topic of the nodes' own, and no stream")
    if len(topic) > TOPIC_LENGTH_MAX:
        raise ProblemError(400, "bad-request", f"path: a stream's name has at most {TOPIC_LENGTH_MAX} characters")
    return topic
