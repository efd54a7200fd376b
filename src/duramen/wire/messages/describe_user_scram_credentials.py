"""DescribeUserScramCredentials (key 50): the SCRAM credentials of users, without their secrets (KIP-554)."""

from duramen.wire.schema import Message
from duramen.wire.types import INT8, INT16, INT32, STRING, Array, Field, Struct

UserName = Struct(
    "UserName",
    Field("name", STRING),
)

DescribeUserScramCredentialsRequest = Message(
    "DescribeUserScramCredentialsRequest",
    "0",
    0,
    Field("users", Array(UserName), nullable="0+"),
)

CredentialInfo = Struct(
    "CredentialInfo",
    Field("mechanism", INT8),
    Field("iterations", INT32),
)

DescribeUserScramCredentialsResult = Struct(
    "DescribeUserScramCredentialsResult",
    Field("user", STRING),
    Field("error_code", INT16),
    Field("error_message", STRING, nullable="0+"),
    Field("credential_infos", Array(CredentialInfo)),
)

DescribeUserScramCredentialsResponse = Message(
    "DescribeUserScramCredentialsResponse",
    "0",
    0,
    Field("throttle_time_ms", INT32),
    Field("error_code", INT16),
    Field("error_message", STRING, nullable="0+"),
    Field("results", Array(DescribeUserScramCredentialsResult)),
)
