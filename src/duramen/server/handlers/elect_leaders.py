"""ElectLeaders: preferred and unclean elections (KIP-183, KIP-460). Versions 0-2."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from duramen.errors import DuramenError, ErrorCode
from duramen.machines.metadata.commands import ElectLeaders
from duramen.server.api.authorizer import CLUSTER_NAME
from duramen.wire.messages.elect_leaders import ElectLeadersResponse

if TYPE_CHECKING:
    from duramen.server.api.request import Request


def handle(request: Request) -> None:
    """Ask the metadata machine; it says per partition whether an election was needed and possible."""
    body = request.body
    if CLUSTER_NAME in request.denied:
        _refuse(request, ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
        return
    election_type = body.election_type if request.version >= 1 else 0
    if election_type not in (0, 1):
        _refuse(request, ErrorCode.INVALID_REQUEST)
        return
    partitions = None
    if body.topic_partitions is not None:
        partitions = tuple((topic.topic, index) for topic in body.topic_partitions for index in topic.partitions)

    def answered(results: Any) -> None:
        if isinstance(results, DuramenError):
            _refuse(request, results.code)
            return
        topics: dict[str, Any] = {}
        for name, index, result in results:
            if partitions is None and result.error is ErrorCode.ELECTION_NOT_NEEDED:
                continue
            topic = topics.get(name)
            if topic is None:
                topic = ElectLeadersResponse.ReplicaElectionResult(topic=name, partition_result=[])
                topics[name] = topic
            topic.partition_result.append(
                ElectLeadersResponse.PartitionResult(
                    partition_id=index, error_code=int(result.error), error_message=result.message
                )
            )
        request.reply(ElectLeadersResponse.new(replica_election_results=list(topics.values())))

    request.services.controller.decide(ElectLeaders(election_type, partitions), answered)


def _refuse(request: Request, code: ErrorCode) -> None:
    response = ElectLeadersResponse.new(replica_election_results=[])
    if request.version >= 1:
        response.error_code = int(code)
    request.reply(response)
