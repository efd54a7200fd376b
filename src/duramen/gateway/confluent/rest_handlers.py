"""All handlers of Confluent's API."""

from __future__ import annotations

from duramen.client.aio import AsyncCluster
from duramen.gateway.confluent.topic_admin import TopicAdmin
from duramen.gateway.confluent.v2_topics import V2Topics
from duramen.gateway.confluent.v3_answers import V3Answers
from duramen.gateway.confluent.v3_groups import V3Groups
from duramen.gateway.confluent.v3_moves import V3Moves
from duramen.gateway.confluent.v3_records import V3Records
from duramen.gateway.confluent.v3_settings import V3Settings
from duramen.gateway.confluent.v3_topics import V3Topics
from duramen.gateway.edge.clock import GatewayClock
from duramen.gateway.edge.request_body import RequestBodies
from duramen.gateway.routes.route import Handler
from duramen.gateway.writes.topic_writes import TopicWrites


def confluent_handlers(
    cluster: AsyncCluster, writes: TopicWrites, bodies: RequestBodies, clock: GatewayClock
) -> dict[str, Handler]:
    """By operation, as the table of routes names them."""
    answers = V3Answers(cluster, bodies)
    admin = TopicAdmin(cluster)
    return {
        **V3Topics(answers, admin).handlers(),
        **V3Settings(answers, admin).handlers(),
        **V3Groups(answers).handlers(),
        **V3Moves(answers, admin).handlers(),
        **V2Topics(cluster, admin, writes, bodies, clock).handlers(),
        **V3Records(answers, writes, bodies, clock).handlers(),
    }
