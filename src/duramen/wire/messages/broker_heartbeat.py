"""BrokerHeartbeat (key 63): a broker lives, how far it follows the metadata, and whether it stops (KIP-631)."""

from duramen.wire.schema import Message
from duramen.wire.types import BOOL, INT16, INT32, INT64, UUID, Array, Field

BrokerHeartbeatRequest = Message(
    "BrokerHeartbeatRequest",
    "0-2",
    0,
    Field("broker_id", INT32),
    Field("broker_epoch", INT64, default=-1),
    Field("current_metadata_offset", INT64),
    Field("want_fence", BOOL),
    Field("want_shut_down", BOOL),
    Field("offline_log_dirs", Array(UUID), "1+", tagged="1+", tag=0),
    Field("cordoned_log_dirs", Array(UUID), "2+", nullable="2+", tagged="2+", tag=1, default=None),
)

BrokerHeartbeatResponse = Message(
    "BrokerHeartbeatResponse",
    "0-2",
    0,
    Field("throttle_time_ms", INT32),
    Field("error_code", INT16),
    Field("is_caught_up", BOOL),
    Field("is_fenced", BOOL, default=True),
    Field("should_shut_down", BOOL),
)
