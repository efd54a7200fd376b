"""DeleteAcls (key 31): access control lists to remove, by filters (KIP-140, KIP-290)."""

from duramen.wire.schema import Message
from duramen.wire.types import INT8, INT16, INT32, STRING, Array, Field, Struct

DeleteAclsFilter = Struct(
    "DeleteAclsFilter",
    Field("resource_type_filter", INT8),
    Field("resource_name_filter", STRING, nullable="0+", default=None),
    Field("pattern_type_filter", INT8, "1+", default=3),
    Field("principal_filter", STRING, nullable="0+", default=None),
    Field("host_filter", STRING, nullable="0+", default=None),
    Field("operation", INT8),
    Field("permission_type", INT8),
)

DeleteAclsRequest = Message(
    "DeleteAclsRequest",
    "1-3",
    2,
    Field("filters", Array(DeleteAclsFilter)),
)

DeleteAclsMatchingAcl = Struct(
    "DeleteAclsMatchingAcl",
    Field("error_code", INT16),
    Field("error_message", STRING, nullable="0+"),
    Field("resource_type", INT8),
    Field("resource_name", STRING),
    Field("pattern_type", INT8, "1+", default=3),
    Field("principal", STRING),
    Field("host", STRING),
    Field("operation", INT8),
    Field("permission_type", INT8),
)

DeleteAclsFilterResult = Struct(
    "DeleteAclsFilterResult",
    Field("error_code", INT16),
    Field("error_message", STRING, nullable="0+"),
    Field("matching_acls", Array(DeleteAclsMatchingAcl)),
)

DeleteAclsResponse = Message(
    "DeleteAclsResponse",
    "1-3",
    2,
    Field("throttle_time_ms", INT32),
    Field("filter_results", Array(DeleteAclsFilterResult)),
)
