"""Version 3: the cluster, its brokers, topics, partitions and replicas."""

from __future__ import annotations

from starlette.requests import Request

from duramen.client.protocol.metadata import PartitionMetadata
from duramen.gateway.access.principal import sender_of
from duramen.gateway.confluent.rest_failures import no_such_partition
from duramen.gateway.confluent.rest_links import RestLinks
from duramen.gateway.confluent.rest_resources import (
    BrokerList,
    BrokerResource,
    ClusterList,
    ClusterResource,
    PartitionList,
    PartitionResource,
    ReplicaList,
    ReplicaResource,
    TopicList,
    TopicResource,
    broker_resource,
    cluster_resource,
    known_topic,
    partition_resource,
    replica_resource,
    topic_resource,
)
from duramen.gateway.confluent.topic_admin import TopicAdmin, WantedPartitions, WantedTopic
from duramen.gateway.confluent.v3_answers import V3Answers, path_number
from duramen.gateway.edge.problem import ProblemError
from duramen.gateway.routes.route import Handler


class V3Topics:
    """Answers what is asked of them."""

    def __init__(self, answers: V3Answers, admin: TopicAdmin) -> None:
        self._answers = answers
        self._cluster = answers.cluster
        self._admin = admin

    def handlers(self) -> dict[str, Handler]:
        """By operation, as the table of routes names them."""
        handler = self._answers.handler
        return {
            "listClustersV3": handler(self._clusters),
            "getClusterV3": handler(self._get_cluster),
            "listBrokersV3": handler(self._brokers),
            "getBrokerV3": handler(self._broker),
            "listBrokerReplicasV3": handler(self._broker_replicas),
            "listTopicsV3": handler(self._topics),
            "createTopicV3": handler(self._create, 201),
            "getTopicV3": handler(self._topic),
            "changeTopicV3": handler(self._change),
            "deleteTopicV3": handler(self._delete),
            "listPartitionsV3": handler(self._partitions),
            "getPartitionV3": handler(self._partition),
            "listReplicasV3": handler(self._replicas),
            "getReplicaV3": handler(self._replica),
        }

    async def _clusters(self, _request: Request, links: RestLinks) -> ClusterList:
        found = cluster_resource(links, await self._cluster.metadata([]))
        return ClusterList("KafkaClusterList", links.clusters(), [found])

    async def _get_cluster(self, _request: Request, links: RestLinks) -> ClusterResource:
        return cluster_resource(links, await self._cluster.metadata([]))

    async def _brokers(self, _request: Request, links: RestLinks) -> BrokerList:
        nodes = (await self._cluster.metadata([])).nodes
        found = [broker_resource(links, nodes[number]) for number in sorted(nodes)]
        return BrokerList("KafkaBrokerList", links.listed("brokers"), found)

    async def _broker(self, request: Request, links: RestLinks) -> BrokerResource:
        return broker_resource(links, await self._answers.node(request))

    async def _broker_replicas(self, request: Request, links: RestLinks) -> ReplicaList:
        node = (await self._answers.node(request)).id
        found = [
            replica_resource(links, topic.name, partition, node)
            for topic in (await self._admin.topics()).values()
            for _, partition in sorted(topic.partitions.items())
            if node in partition.replicas
        ]
        return ReplicaList("KafkaReplicaList", links.listed("brokers", node, "partition-replicas"), found)

    async def _topics(self, request: Request, links: RestLinks) -> TopicList:
        topics = await self._admin.readable_topics(sender_of(request.scope))
        return TopicList(
            "KafkaTopicList", links.listed("topics"), [known_topic(links, each) for each in topics.values()]
        )

    async def _create(self, request: Request, links: RestLinks) -> TopicResource:
        wanted = await self._answers.wanted(request, WantedTopic)
        partitions, copies = await self._admin.create(wanted)
        return topic_resource(
            links, wanted.topic_name, is_internal=False, replication_factor=copies, partitions=partitions
        )

    async def _topic(self, request: Request, links: RestLinks) -> TopicResource:
        return known_topic(links, await self._admin.topic(request.path_params["topic_name"]))

    async def _change(self, request: Request, links: RestLinks) -> TopicResource:
        wanted = await self._answers.wanted(request, WantedPartitions)
        await self._admin.set_partitions(request.path_params["topic_name"], wanted.partitions_count)
        return await self._topic(request, links)

    async def _delete(self, request: Request, _links: RestLinks) -> None:
        await self._admin.delete(request.path_params["topic_name"])

    async def _partitions(self, request: Request, links: RestLinks) -> PartitionList:
        topic = await self._admin.topic(request.path_params["topic_name"])
        found = [partition_resource(links, topic.name, each) for _, each in sorted(topic.partitions.items())]
        return PartitionList("KafkaPartitionList", links.listed("topics", topic.name, "partitions"), found)

    async def _partition(self, request: Request, links: RestLinks) -> PartitionResource:
        return partition_resource(links, request.path_params["topic_name"], await self._found(request))

    async def _replicas(self, request: Request, links: RestLinks) -> ReplicaList:
        topic, partition = request.path_params["topic_name"], await self._found(request)
        found = [replica_resource(links, topic, partition, node) for node in partition.replicas]
        path = ("topics", topic, "partitions", partition.partition, "replicas")
        return ReplicaList("KafkaReplicaList", links.listed(*path), found)

    async def _replica(self, request: Request, links: RestLinks) -> ReplicaResource:
        partition, node = await self._found(request), path_number(request, "broker_id")
        if node not in partition.replicas:
            raise ProblemError(404, "no-such-broker", f"Replica {node} of the partition cannot be found.")
        return replica_resource(links, request.path_params["topic_name"], partition, node)

    async def _found(self, request: Request) -> PartitionMetadata:
        topic = await self._admin.topic(request.path_params["topic_name"])
        partition = topic.partitions.get(path_number(request, "partition_id"))
        if partition is None:
            raise no_such_partition()
        return partition
