"""Which APIs and versions a node serves, and which version of each the two sides speak (KIP-35)."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, Final, NamedTuple

from duramen.client.protocol.metadata import error_code
from duramen.errors import ErrorCode, KafkaError
from duramen.version import VERSION
from duramen.wire.messages import API

API_VERSIONS: Final = 18
OWN_KEYS: Final = range(10_000, 11_000)
"""Keys of APIs that only Duramen has."""


class ApiVersions(NamedTuple):
    """(lowest, highest) version by API key, as a node advertises them."""

    ranges: dict[int, tuple[int, int]]

    @property
    def is_duramen(self) -> bool:
        """Whether the node serves APIs of Duramen's own; a foreign Kafka does not."""
        return any(key in OWN_KEYS for key in self.ranges)

    def serves(self, key: int) -> bool:
        """Whether some version of this API is spoken by both sides."""
        return key in API and self._common(key) is not None

    def version(self, key: int, highest: int | None = None) -> int:
        """The highest version both sides speak, at most `highest`; KafkaError UNSUPPORTED_VERSION without one."""
        api = API[key]
        common = self._common(key, highest)
        if common is None:
            served = self.ranges.get(key)
            said = "does not serve it" if served is None else f"serves versions {served[0]} to {served[1]}"
            raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, f"{api.name} (key {key}): the node {said}")
        return common

    def _common(self, key: int, highest: int | None = None) -> int | None:
        api = API[key]
        low, high = self.ranges.get(key, (0, -1))
        version = min(api.max_version, high) if highest is None else min(api.max_version, high, highest)
        return version if version >= max(api.min_version, low) else None


def parsed(response: Any) -> ApiVersions:
    """The ranges of an ApiVersions response."""
    return ApiVersions({entry.api_key: (entry.min_version, entry.max_version) for entry in response.api_keys})


def negotiation(address: str) -> Generator[ApiVersions, Any, ApiVersions]:
    """Ask in our highest version, and again in the node's highest when it does not know that one (KIP-511).

    Yields the versions to send the next `question` in, is sent the response, and returns what the node serves.
    KafkaError when the node does not say.
    """
    response = yield ApiVersions({API_VERSIONS: (0, API[API_VERSIONS].max_version)})
    if response.error_code == ErrorCode.UNSUPPORTED_VERSION:
        served = parsed(response)
        response = yield served if API_VERSIONS in served.ranges else ApiVersions({API_VERSIONS: (0, 0)})
    if response.error_code:
        raise KafkaError(error_code(response.error_code), f"{address} does not say which versions it serves")
    return parsed(response)


def question() -> Any:
    """The ApiVersions request of a negotiation."""
    return API[API_VERSIONS].request.new(client_software_name="duramen-python", client_software_version=VERSION)


def no_node(address: str, reason: object) -> str:
    """What is said of an address whose first answer cannot be understood."""
    return f"{address} does not speak Kafka's protocol in plain text: is it the port of a node? ({reason})"
