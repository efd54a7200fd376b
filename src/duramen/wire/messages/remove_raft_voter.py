"""RemoveRaftVoter (key 81): a controller shall be a voter no more (KIP-853)."""

from duramen.wire.schema import Message
from duramen.wire.types import INT16, INT32, STRING, UUID, Field

RemoveRaftVoterRequest = Message(
    "RemoveRaftVoterRequest",
    "0",
    0,
    Field("cluster_id", STRING, nullable="0+"),
    Field("voter_id", INT32),
    Field("voter_directory_id", UUID),
)

RemoveRaftVoterResponse = Message(
    "RemoveRaftVoterResponse",
    "0",
    0,
    Field("throttle_time_ms", INT32),
    Field("error_code", INT16),
    Field("error_message", STRING, nullable="0+", ignorable=True),
)
