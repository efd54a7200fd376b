"""The Kafka protocol from the other side, for raw batches: connections, metadata, fetch and produce.

Synchronous and blocking, without threads of its own; one `Cluster` belongs to one thread. `duramen.client.aio` has the
same on asyncio. Records stay bytes: whoever wants rows or columns decodes the batches. It talks to Duramen and to
Apache Kafka alike.
"""

from duramen.client.blocking.cluster import Cluster
from duramen.client.protocol.fetch import FetchedBytes
from duramen.client.protocol.list_offsets import EARLIEST, LATEST, MAX_TIMESTAMP, ListedOffset
from duramen.client.protocol.metadata import ClusterMetadata, ClusterNode, PartitionMetadata, TopicMetadata
from duramen.client.protocol.produce import Produced
from duramen.client.protocol.routes import ANY, CONTROLLER, GROUP, SINK, TRANSACTION, CoordinatorKey, Route
from duramen.client.protocol.versions import ApiVersions

READ_UNCOMMITTED = 0
READ_COMMITTED = 1

__all__ = [
    "ANY",
    "CONTROLLER",
    "EARLIEST",
    "GROUP",
    "LATEST",
    "MAX_TIMESTAMP",
    "READ_COMMITTED",
    "READ_UNCOMMITTED",
    "SINK",
    "TRANSACTION",
    "ApiVersions",
    "Cluster",
    "ClusterMetadata",
    "ClusterNode",
    "CoordinatorKey",
    "FetchedBytes",
    "ListedOffset",
    "PartitionMetadata",
    "Produced",
    "Route",
    "TopicMetadata",
]
