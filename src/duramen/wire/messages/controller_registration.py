"""ControllerRegistration (key 70): a controller process says who and where it is (KIP-919)."""

from duramen.wire.schema import Message
from duramen.wire.types import BOOL, INT16, INT32, STRING, UINT16, UUID, Array, Field, Struct

Listener = Struct(
    "Listener",
    Field("name", STRING),
    Field("host", STRING),
    Field("port", UINT16),
    Field("security_protocol", INT16),
)

Feature = Struct(
    "Feature",
    Field("name", STRING),
    Field("min_supported_version", INT16),
    Field("max_supported_version", INT16),
)

ControllerRegistrationRequest = Message(
    "ControllerRegistrationRequest",
    "0",
    0,
    Field("controller_id", INT32),
    Field("incarnation_id", UUID),
    Field("zk_migration_ready", BOOL),
    Field("listeners", Array(Listener)),
    Field("features", Array(Feature)),
)

ControllerRegistrationResponse = Message(
    "ControllerRegistrationResponse",
    "0",
    0,
    Field("throttle_time_ms", INT32),
    Field("error_code", INT16),
    Field("error_message", STRING, nullable="0+"),
)
