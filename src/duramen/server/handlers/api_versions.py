"""ApiVersions: which APIs and versions the listener serves that the client came through, and the features.

Versions 0-4; any other is answered in version 0 (KIP-511).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from duramen.errors import ErrorCode
from duramen.server.api.request import ApiRow, Request
from duramen.wire.messages.api_versions import ApiVersionsResponse

if TYPE_CHECKING:
    from duramen.server.api.services import Services
    from duramen.server.net.connection import ClientConnection

_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")
FIRST_VERSION_WITH_SOFTWARE = 3
FIRST_VERSION_WITH_ZERO_FEATURES = 4
KRAFT_FEATURE = ("kraft.version", 0, 1)
"""Where the voters of the quorum stand (KIP-853). Its level is no record of the metadata but one of the log's own."""


def response(request: Request, error: ErrorCode) -> Any:
    """The table as a message; with UNSUPPORTED_VERSION it tells the client how to ask again."""
    services, node = request.services, request.services.node
    # A directory that was Kafka's may have more levels in its log; what they stand for is not served here.
    names = {name for name, _, _ in node.features}
    levels = {name: level for name, level in services.image.features.items() if name in names}
    levels[KRAFT_FEATURE[0]] = services.kraft_version
    # Features whose lowest version is 0 are left out below v4: older clients refuse them (KAFKA-17011).
    features = [
        ApiVersionsResponse.SupportedFeatureKey(name=name, min_version=low, max_version=high)
        for name, low, high in (*node.features, KRAFT_FEATURE)
        if low > 0 or request.version >= FIRST_VERSION_WITH_ZERO_FEATURES
    ]
    finalized = [
        ApiVersionsResponse.FinalizedFeatureKey(name=name, max_version_level=level, min_version_level=level)
        for name, level in sorted(levels.items())
        if level > 0
    ]
    return ApiVersionsResponse.new(
        error_code=int(error),
        api_keys=[
            ApiVersionsResponse.ApiVersion(api_key=key, min_version=low, max_version=high)
            for key, low, high in node.apis[request.connection.listener_type]
        ],
        supported_features=features,
        finalized_features_epoch=services.image.next_offset,
        finalized_features=finalized,
    )


def refuse_version(
    services: Services, connection: ClientConnection, row: ApiRow, view: memoryview, version: int, correlation_id: int
) -> bool:
    """Answer a version that is not served, in version 0 (KIP-511)."""
    request = Request(services, connection, row, 0, correlation_id)
    connection.expect(request)
    request.reply(response(request, ErrorCode.UNSUPPORTED_VERSION))
    return True


def handle(request: Request) -> None:
    """Answer with the dispatch table; INVALID_REQUEST for a client name that is not one."""
    error = ErrorCode.NONE
    if request.version >= FIRST_VERSION_WITH_SOFTWARE:
        name, version = request.body.client_software_name, request.body.client_software_version
        if _SOFTWARE.fullmatch(name) and _SOFTWARE.fullmatch(version):
            request.connection.software = (name, version)
        else:
            error = ErrorCode.INVALID_REQUEST
    request.reply(response(request, error))
