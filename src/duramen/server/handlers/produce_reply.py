"""Replies to produce requests of one batch, the most frequent reply there is: made from a template.

Two such replies for the same partition and version differ only in correlation id, base offset, append time and log
start. The template is what the ordinary encoder makes, taken apart where these numbers stand.
"""

from __future__ import annotations

from struct import Struct

from duramen.model import NO_TIMESTAMP
from duramen.wire.frame import encode_response
from duramen.wire.messages import API
from duramen.wire.messages.produce import ProduceResponse

FIRST_VERSION_WITH_LOG_START = 5
MAX_TEMPLATES = 10_000

_SENTINEL = 0x5AA5_0FF0_C33C_9669
_SENTINEL_BYTES = _SENTINEL.to_bytes(8, "big")
_BEFORE_CORRELATION = 4
_BEFORE_MIDDLE = 8


class Template:
    """The reply to an append to one partition, in one version."""

    __slots__ = ("_head", "_middle", "_pack", "_tail", "_with_start")

    def __init__(self, version: int, reply: bytes) -> None:
        # Nothing but the base offset follows the topic's name, so the last place that looks like it is it.
        numbers = reply.rindex(_SENTINEL_BYTES)
        self._with_start = version >= FIRST_VERSION_WITH_LOG_START
        self._head = reply[:_BEFORE_CORRELATION]
        self._middle = reply[_BEFORE_MIDDLE:numbers]
        self._tail = reply[numbers + (24 if self._with_start else 16) :]
        fields = "qqq" if self._with_start else "qq"
        self._pack = Struct(f">4si{len(self._middle)}s{fields}{len(self._tail)}s").pack

    def reply(self, correlation_id: int, base_offset: int, append_time: int, start: int) -> bytes:
        """The whole frame."""
        if self._with_start:
            return self._pack(self._head, correlation_id, self._middle, base_offset, append_time, start, self._tail)
        return self._pack(self._head, correlation_id, self._middle, base_offset, append_time, self._tail)


class ProduceReplies:
    """Templates by version and partition; bounded, because partitions are many and come and go."""

    def __init__(self) -> None:
        self._templates: dict[tuple[int, str, bytes, int], Template] = {}

    def template(self, version: int, topic_name: str, topic_id: bytes, index: int) -> Template:
        """The template for a partition, made when it is first asked for."""
        place = (version, topic_name, topic_id, index)
        found = self._templates.get(place)
        if found is None:
            entry = ProduceResponse.PartitionProduceResponse(
                index=index, base_offset=_SENTINEL, log_append_time_ms=NO_TIMESTAMP, log_start_offset=0
            )
            topic = ProduceResponse.TopicProduceResponse(
                name=topic_name, topic_id=topic_id, partition_responses=[entry]
            )
            parts = encode_response(API[0], version, 0, ProduceResponse.new(responses=[topic]))
            found = Template(version, b"".join(parts))  # type: ignore[arg-type]
            if len(self._templates) >= MAX_TEMPLATES:
                self._templates.clear()
            self._templates[place] = found
        return found
