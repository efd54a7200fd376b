"""ConsumerGroupHeartbeat: these groups are not served, and whoever asks is told so as Kafka tells it.

Kafka has the API also where `group.version` is 0, and answers UNSUPPORTED_VERSION. Clients know that answer: Java's
ends with words about `group.protocol`, franz-go goes on as a classic member. librdkafka 2.16 takes a broker without
the API for one that is away, and looks for it for ever without a word. Versions 0-1.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from duramen.errors import ErrorCode
from duramen.wire.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatResponse

if TYPE_CHECKING:
    from duramen.server.api.request import Request

TOLD = "Groups of the consumer protocol are not served; set group.protocol=classic."


def handle(request: Request) -> None:
    """The same to everybody, whatever the group: nothing is looked up."""
    request.reply(ConsumerGroupHeartbeatResponse.new(error_code=int(ErrorCode.UNSUPPORTED_VERSION), error_message=TOLD))
