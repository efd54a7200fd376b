"""AddRaftVoter (key 80): a controller shall become a voter (KIP-853)."""

from duramen.wire.schema import Message
from duramen.wire.types import BOOL, INT16, INT32, STRING, UINT16, UUID, Array, Field, Struct

Listener = Struct(
    "Listener",
    Field("name", STRING),
    Field("host", STRING),
    Field("port", UINT16),
)

AddRaftVoterRequest = Message(
    "AddRaftVoterRequest",
    "0-1",
    0,
    Field("cluster_id", STRING, nullable="0+"),
    Field("timeout_ms", INT32),
    Field("voter_id", INT32),
    Field("voter_directory_id", UUID),
    Field("listeners", Array(Listener)),
    Field("ack_when_committed", BOOL, "1+", default=True),
)

AddRaftVoterResponse = Message(
    "AddRaftVoterResponse",
    "0-1",
    0,
    Field("throttle_time_ms", INT32),
    Field("error_code", INT16),
    Field("error_message", STRING, nullable="0+", ignorable=True),
)
