"""The client on asyncio, for programs whose calls are coroutines: many requests in flight on few connections."""

from duramen.client.aio.async_cluster import AsyncCluster
from duramen.client.aio.async_group_member import AssignmentListener, AsyncGroupMember
from duramen.client.aio.async_group_offsets import AsyncGroupOffsets
from duramen.client.protocol.group_offsets import GroupOffset, PartitionNotAssignedError

__all__ = [
    "AssignmentListener",
    "AsyncCluster",
    "AsyncGroupMember",
    "AsyncGroupOffsets",
    "GroupOffset",
    "PartitionNotAssignedError",
]
