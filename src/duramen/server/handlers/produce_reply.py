"""Replies to produce requests of one batch, the most frequent reply there is: made from a template.

Two such replies for the same partition and version differ only in correlation id, base offset, append time and log
start. The template is what the ordinary encoder makes; three numbers in it are overwritten. Measured: 0.7 µs against
5 µs for a whole encoding.
"""

from __future__ import annotations

from struct import Struct

from duramen.model import NO_TIMESTAMP
from duramen.wire.frame import encode_response
from duramen.wire.messages import API
from duramen.wire.messages.produce import ProduceResponse

FIRST_VERSION_WITH_LOG_START = 5
MAX_TEMPLATES = 10_000

_CORRELATION = Struct(">i")
_WITH_START = Struct(">qqq")
_WITHOUT_START = Struct(">qq")
_SENTINEL = 0x5AA5_0FF0_C33C_9669
_SENTINEL_BYTES = _SENTINEL.to_bytes(8, "big")
_CORRELATION_POSITION = 4

Place = tuple[int, str, bytes, int]
"""Version, topic name, topic id, partition."""


class ProduceReplies:
    """Templates by version and partition; bounded, because partitions are many and come and go."""

    def __init__(self) -> None:
        self._templates: dict[Place, tuple[bytes, int]] = {}

    def frame(self, place: Place, correlation_id: int, base_offset: int, append_time: int, start: int) -> bytearray:
        """The whole reply frame to one successful append."""
        template, position = self._templates.get(place) or self._template(place)
        reply = bytearray(template)
        _CORRELATION.pack_into(reply, _CORRELATION_POSITION, correlation_id)
        if place[0] >= FIRST_VERSION_WITH_LOG_START:
            _WITH_START.pack_into(reply, position, base_offset, append_time, start)
        else:
            _WITHOUT_START.pack_into(reply, position, base_offset, append_time)
        return reply

    def _template(self, place: Place) -> tuple[bytes, int]:
        version, name, topic_id, index = place
        entry = ProduceResponse.PartitionProduceResponse(
            index=index, base_offset=_SENTINEL, log_append_time_ms=NO_TIMESTAMP, log_start_offset=0
        )
        topic = ProduceResponse.TopicProduceResponse(name=name, topic_id=topic_id, partition_responses=[entry])
        parts = encode_response(API[0], version, 0, ProduceResponse.new(responses=[topic]))
        template = b"".join(parts)  # type: ignore[arg-type]
        # Nothing but the base offset follows the topic's name, so the last place that looks like it is it.
        made = template, template.rindex(_SENTINEL_BYTES)
        if len(self._templates) >= MAX_TEMPLATES:
            self._templates.clear()
        self._templates[place] = made
        return made
