"""UpdateFeatures: raise or lower the finalized level of a feature (KIP-584). Versions 0-2.

A new cluster has the highest level of each (`machines/metadata/features.py`); a directory that exists keeps those it
came with until somebody raises them. The quorum's own, `kraft.version`, stays as it is.
v1 says what kind of change is meant · v2 answers for all updates together.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from duramen.errors import DuramenError, ErrorCode
from duramen.machines.metadata import FeatureUpdate, Result, UpdateFeatures
from duramen.server.api.authorizer import CLUSTER_NAME
from duramen.server.handlers.api_versions import KRAFT_FEATURE
from duramen.wire.messages.update_features import UpdateFeaturesResponse

if TYPE_CHECKING:
    from duramen.server.api.request import Request

UPGRADE = 1
REFUSED = "The update failed for all features since the following feature had an error"
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
    other = next((u for u in updates if u.feature == KRAFT_FEATURE[0] and u.level != services.kraft_version), None)
    if other is not None:
        told = f"Invalid update version {other.level} for feature {other.feature}. "
        told += f"This release cannot change it: it is {services.kraft_version}."
        _reply(request, Result(ErrorCode.INVALID_UPDATE_VERSION, f"{REFUSED}: {told}"))
        return
    updates = tuple(update for update in updates if update.feature != KRAFT_FEATURE[0])

    def answered(result: Result | DuramenError) -> None:
        _reply(request, Result(result.code, str(result)) if isinstance(result, DuramenError) else result)

    command = UpdateFeatures(services.node.id, tuple(services.node.features), updates, typed and body.validate_only)
    services.controller.decide(command, answered)


def _reply(request: Request, result: Result) -> None:
    response = UpdateFeaturesResponse.new(error_code=int(result.error), error_message=result.message, results=[])
    if result.error is ErrorCode.NONE:
        response.results = [
            UpdateFeaturesResponse.UpdatableFeatureResult(feature=item.feature, error_message=None)
            for item in request.body.feature_updates
        ]
    request.reply(response)
