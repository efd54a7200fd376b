"""Small Produce requests that begin like an earlier one, as most of them do.

From the client id to the partition's index they are the same bytes again and again; only correlation id and batch
differ. What those bytes mean is kept, and the rest is read here as the decoder would read it. Whatever is not as usual
(a tagged field, no batch, bytes behind the message, an authorizer to be asked) is left to the decoder.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from duramen.server.api.authorizer import AllowAll
from duramen.server.handlers.produce import FIRST_VERSION_WITH_TOPIC_IDS, Destination, ProduceRequest
from duramen.wire.frame import SIZE_BYTES, encode_request

if TYPE_CHECKING:
    from duramen.server.broker import Broker
    from duramen.server.net.connection import ClientConnection

FIRST_VERSION = 9
"""Older ones have other length fields, and are rare."""

PREFIX_START = 8
"""Behind key, version and correlation id: the length of the client id."""
CLIENT_START = PREFIX_START + 2
BEFORE_TOPIC = 1 + 1 + 2 + 4 + 1
"""No tagged fields, no transactional id, acks, timeout, the number of topics."""
BEHIND_TOPIC = 1 + 4
"""The number of partitions and the index of the one."""
TOPIC_ID_BYTES = 16

TAIL_BYTES = 3
"""No tagged fields of the partition, of the topic, of the request."""
LARGEST_FRAME = 1 << 14
"""Bytes. In these the batch's length takes at most two; for larger ones decoding is no burden."""

LONGEST_PREFIX = 512
"""Bytes. Client ids may be of 16 KB, and what is learnt stays."""

MOST_PREFIXES = 4096
"""Kept of each version; a producer has one for each partition it writes to, producers of one client id share them."""


class KnownProduces:
    """What Produce requests begin with, and where that sends a batch."""

    __slots__ = ("_known",)

    def __init__(self) -> None:
        self._known: dict[int, dict[bytes, Destination]] = {}
        """By version, by prefix."""

    def take(
        self,
        broker: Broker,
        connection: ClientConnection,
        view: memoryview,
        version: int,
        correlation: int,
        client: int,
    ) -> bool:
        """Handle the frame in `view`, whose client id has so many bytes, if it begins like an earlier one."""
        known = self._known.get(version)
        end = CLIENT_START + client + BEFORE_TOPIC
        if known is None or client < 0 or len(view) <= end:
            return False
        end += BEHIND_TOPIC + (TOPIC_ID_BYTES if version >= FIRST_VERSION_WITH_TOPIC_IDS else view[end])
        prefix = view[PREFIX_START:end].tobytes()
        to = known.get(prefix)
        if to is None or to.client_bytes != connection.client_bytes or type(broker.authorizer) is not AllowAll:
            return False
        if to.partition.closed:
            del known[prefix]
            return False
        batch = batch_behind(view, end)
        if batch is None:
            return False
        request = ProduceRequest(broker, connection, to.row, version, correlation)
        connection.expect(request)
        request.append(to, batch)
        return True

    def learn(self, view: memoryview, request: ProduceRequest) -> None:
        """Remember how a decoded request of one batch begins, if it is just as our encoder would write it."""
        to = request.to
        version, client = request.version, request.connection.client_id
        if to is None or version < FIRST_VERSION or len(view) > LARGEST_FRAME:
            return
        by_name = version < FIRST_VERSION_WITH_TOPIC_IDS
        topic = 1 + len(to.topic_name.encode()) if by_name else TOPIC_ID_BYTES
        end = CLIENT_START + len(to.client_bytes) + BEFORE_TOPIC + topic + BEHIND_TOPIC
        prefix = view[PREFIX_START:end].tobytes()
        known = self._known.setdefault(version, {})
        if topic > 127 or len(prefix) > LONGEST_PREFIX or prefix in known:
            return
        parts = encode_request(request.row.api, version, request.correlation_id, client, request.body)
        if b"".join(parts)[SIZE_BYTES:] == view:  # type: ignore[arg-type]  # no spans in a request
            if len(known) >= MOST_PREFIXES:
                known.clear()
            known[prefix] = to


def batch_behind(view: memoryview, position: int) -> memoryview | None:
    """The batch whose length is at `position` of a message that ends behind it as usual; None for any other end."""
    if len(view) < position + 2 + TAIL_BYTES:
        return None
    size = view[position]
    position += 1
    if size > 127:
        more = view[position]
        if more > 127:
            return None
        size = size & 127 | more << 7
        position += 1
    end = position + size - 1  # the length counts one more
    if size < 2 or end + TAIL_BYTES != len(view) or view[end] or view[end + 1] or view[end + 2]:
        return None
    return view[position:end]
