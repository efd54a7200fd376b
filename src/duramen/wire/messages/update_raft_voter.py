"""UpdateRaftVoter (key 82): a voter says where it listens and what it supports (KIP-853)."""

from duramen.wire.schema import Message
from duramen.wire.types import INT16, INT32, STRING, UINT16, UUID, Array, Field, Struct

Listener = Struct(
    "Listener",
    Field("name", STRING),
    Field("host", STRING),
    Field("port", UINT16),
)

KRaftVersionFeature = Struct(
    "KRaftVersionFeature",
    Field("min_supported_version", INT16),
    Field("max_supported_version", INT16),
)

UpdateRaftVoterRequest = Message(
    "UpdateRaftVoterRequest",
    "0",
    0,
    Field("cluster_id", STRING, nullable="0+"),
    Field("current_leader_epoch", INT32),
    Field("voter_id", INT32),
    Field("voter_directory_id", UUID),
    Field("listeners", Array(Listener)),
    Field("k_raft_version_feature", KRaftVersionFeature),
)

CurrentLeader = Struct(
    "CurrentLeader",
    Field("leader_id", INT32, default=-1),
    Field("leader_epoch", INT32, default=-1),
    Field("host", STRING),
    Field("port", INT32),
)

UpdateRaftVoterResponse = Message(
    "UpdateRaftVoterResponse",
    "0",
    0,
    Field("throttle_time_ms", INT32),
    Field("error_code", INT16),
    Field("current_leader", CurrentLeader, tagged="0+", tag=0),
)
