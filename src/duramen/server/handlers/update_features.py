"""UpdateFeatures: raise the finalized level of a feature (KIP-584). Versions 0-2.

The only feature here is `metadata.version`. A new cluster has its highest level; a directory that was Kafka's keeps the
level it came with until somebody raises it. v1 says what kind of change is meant · v2 answers for all updates together.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from duramen.errors import DuramenError, ErrorCode
from duramen.machines.metadata import FeatureUpdate, Result, UpdateFeatures
from duramen.server.api.authorizer import CLUSTER_NAME
from duramen.wire.messages.update_features import UpdateFeaturesResponse

if TYPE_CHECKING:
    from duramen.server.api.request import Request

UPGRADE = 1
FIRST_VERSION_WITH_TYPES = 1


def handle(request: Request) -> None:
    """All updates of a request are made, or none of them. v0 knows downgrades that Kafka 4 takes for upgrades."""
    body = request.body
    if CLUSTER_NAME in request.denied:
        _reply(request, Result(ErrorCode.CLUSTER_AUTHORIZATION_FAILED))
        return
    typed = request.version >= FIRST_VERSION_WITH_TYPES
    updates = tuple(
        FeatureUpdate(item.feature, item.max_version_level, item.upgrade_type if typed else UPGRADE)
        for item in body.feature_updates
    )
    services = request.services

    def answered(result: Result | DuramenError) -> None:
        _reply(request, Result(result.code, str(result)) if isinstance(result, DuramenError) else result)

    command = UpdateFeatures(services.node.id, tuple(services.node.features), updates, typed and body.validate_only)
    services.controller.host.submit(command, answered)


def _reply(request: Request, result: Result) -> None:
    response = UpdateFeaturesResponse.new(error_code=int(result.error), error_message=result.message, results=[])
    if result.error is ErrorCode.NONE:
        response.results = [
            UpdateFeaturesResponse.UpdatableFeatureResult(feature=item.feature, error_message=None)
            for item in request.body.feature_updates
        ]
    request.reply(response)
