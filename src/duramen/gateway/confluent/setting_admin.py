"""Settings of topics and nodes: described, and changed one by one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, Literal, NamedTuple

import msgspec

from duramen.client.aio import AsyncCluster
from duramen.client.protocol.described_settings import DESCRIBE_CONFIGS
from duramen.client.protocol.metadata import error_code
from duramen.client.protocol.routes import ANY, CONTROLLER, Route
from duramen.errors import KafkaError
from duramen.gateway.edge.problem import ProblemError, bad_request
from duramen.gateway.edge.single_answers import single_answer
from duramen.gateway.streams.stream_topics import INCREMENTAL_ALTER_CONFIGS
from duramen.wire.messages import API

TOPIC: Final = 2
BROKER: Final = 4
ALL_BROKERS: Final = ""
"""The name of what holds for every node without a setting of its own."""

_SET: Final = 0
_DELETE: Final = 1
_AT_ONCE: Final = 500
_SOURCES: Final = {
    1: "DYNAMIC_TOPIC_CONFIG",
    2: "DYNAMIC_BROKER_CONFIG",
    3: "DYNAMIC_DEFAULT_BROKER_CONFIG",
    4: "STATIC_BROKER_CONFIG",
    5: "DEFAULT_CONFIG",
    6: "DYNAMIC_BROKER_LOGGER_CONFIG",
}


class SettingOwner(NamedTuple):
    """What has settings: a topic or node by its name."""

    kind: int
    name: str

    @property
    def route(self) -> Route:
        """Who knows its settings."""
        return int(self.name) if self.kind == BROKER and self.name else ANY


class SettingSource(msgspec.Struct):
    """A value that the setting has somewhere, the one that counts first."""

    name: str
    value: str | None
    source: str


class FoundSetting(NamedTuple):
    """A setting as it is. value: None where it is secret."""

    name: str
    value: str | None
    source: str
    is_read_only: bool
    is_sensitive: bool
    synonyms: list[SettingSource]


class WantedChange(msgspec.Struct, forbid_unknown_fields=True):
    """A setting that is to be changed. DELETE: to its default."""

    name: str
    value: str | None = None
    operation: Literal["SET", "DELETE"] | None = None


class WantedChanges(msgspec.Struct, forbid_unknown_fields=True):
    """Settings that are changed together, or not at all."""

    data: list[WantedChange]
    validate_only: bool = False


class WantedValue(msgspec.Struct, forbid_unknown_fields=True):
    """The value that a setting is to have."""

    value: str | None


class SettingAdmin:
    """Asks about settings and changes them. All raise KafkaError for what is refused."""

    def __init__(self, cluster: AsyncCluster) -> None:
        self._cluster = cluster

    async def described(self, owners: Iterable[SettingOwner]) -> list[tuple[SettingOwner, list[FoundSetting]]]:
        """The settings of each, by name."""
        found: list[tuple[SettingOwner, list[FoundSetting]]] = []
        by_route: dict[Route, list[SettingOwner]] = {}
        for owner in owners:
            by_route.setdefault(owner.route, []).append(owner)
        for route, some in by_route.items():
            for start in range(0, len(some), _AT_ONCE):
                found += await self._asked(route, some[start : start + _AT_ONCE])
        return found

    async def change(self, owner: SettingOwner, changes: Sequence[WantedChange], *, validate_only: bool) -> None:
        """Change settings together. Problem 400, 404: it has none of that name."""
        names = [each.name for each in changes]
        if len({*names}) < len(names):
            raise bad_request("data", "a setting is named twice")
        ((_, settings),) = await self.described([owner])
        known = {each.name for each in settings}
        message = API[INCREMENTAL_ALTER_CONFIGS].request
        configs = []
        for each in changes:
            if owner.name != ALL_BROKERS and each.name not in known:
                raise no_such_setting(each.name)
            operation = _DELETE if each.operation == "DELETE" else _SET
            if operation == _SET and each.value is None:
                raise bad_request("value", f"{each.name} has none; DELETE sets it back to its default")
            value = each.value if operation == _SET else None
            configs.append(message.AlterableConfig(name=each.name, config_operation=operation, value=value))
        resource = message.AlterConfigsResource(resource_type=owner.kind, resource_name=owner.name, configs=configs)
        request = message.new(resources=[resource], validate_only=validate_only)
        await single_answer(self._cluster, CONTROLLER, INCREMENTAL_ALTER_CONFIGS, request, "responses")

    async def _asked(
        self, route: Route, owners: Sequence[SettingOwner]
    ) -> list[tuple[SettingOwner, list[FoundSetting]]]:
        message = API[DESCRIBE_CONFIGS].request
        resources = [
            message.DescribeConfigsResource(resource_type=owner.kind, resource_name=owner.name, configuration_keys=None)
            for owner in owners
        ]
        request = message.new(resources=resources, include_synonyms=True)
        response = await self._cluster.call(route, DESCRIBE_CONFIGS, request)
        found = []
        for result in response.results:
            if result.error_code:
                raise KafkaError(error_code(result.error_code), f"{result.resource_name}: {result.error_message or ''}")
            settings = [
                FoundSetting(
                    each.name,
                    None if each.is_sensitive else each.value,
                    _SOURCES.get(each.config_source, "UNKNOWN"),
                    each.read_only,
                    each.is_sensitive,
                    [
                        SettingSource(same.name, same.value, _SOURCES.get(same.source, "UNKNOWN"))
                        for same in each.synonyms
                    ],
                )
                for each in result.configs
            ]
            found.append((SettingOwner(result.resource_type, result.resource_name), sorted(settings)))
        return found


def no_such_setting(name: str) -> ProblemError:
    """404."""
    return ProblemError(404, "no-such-setting", f"Config {name} cannot be found.")
