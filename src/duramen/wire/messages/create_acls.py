"""CreateAcls (key 30): new access control lists (KIP-140, KIP-290)."""

from duramen.wire.schema import Message
from duramen.wire.types import INT8, INT16, INT32, STRING, Array, Field, Struct

AclCreation = Struct(
    "AclCreation",
    Field("resource_type", INT8),
    Field("resource_name", STRING),
    Field("resource_pattern_type", INT8, "1+", default=3),
    Field("principal", STRING),
    Field("host", STRING),
    Field("operation", INT8),
    Field("permission_type", INT8),
)

CreateAclsRequest = Message(
    "CreateAclsRequest",
    "1-3",
    2,
    Field("creations", Array(AclCreation)),
)

AclCreationResult = Struct(
    "AclCreationResult",
    Field("error_code", INT16),
    Field("error_message", STRING, nullable="0+"),
)

CreateAclsResponse = Message(
    "CreateAclsResponse",
    "1-3",
    2,
    Field("throttle_time_ms", INT32),
    Field("results", Array(AclCreationResult)),
)
