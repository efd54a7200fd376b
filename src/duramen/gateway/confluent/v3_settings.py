"""Version 3: settings of topics, of nodes, and of all nodes together."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Literal, NamedTuple

import msgspec
from starlette.requests import Request

from duramen.gateway.access.principal import sender_of
from duramen.gateway.confluent.rest_links import ListMetadata, ResourceMetadata, RestLinks
from duramen.gateway.confluent.setting_admin import (
    ALL_BROKERS,
    BROKER,
    TOPIC,
    FoundSetting,
    SettingAdmin,
    SettingOwner,
    SettingSource,
    WantedChange,
    WantedChanges,
    WantedValue,
    no_such_setting,
)
from duramen.gateway.confluent.topic_admin import TopicAdmin
from duramen.gateway.confluent.v3_answers import V3Answers, V3Call, path_number
from duramen.gateway.routes.route import Handler

SettingKind = Literal["KafkaTopicConfig", "KafkaBrokerConfig", "KafkaClusterConfig"]
_DEFAULT: Final = "DEFAULT_CONFIG"


class SettingResource(msgspec.Struct, omit_defaults=True):
    """A setting of a topic (topic_name), a node (broker_id), or all nodes (config_type BROKER).

    value: null where it is secret; is_default: nobody has set it anywhere.
    """

    kind: SettingKind
    metadata: ResourceMetadata
    cluster_id: str
    name: str
    value: str | None
    is_default: bool
    is_read_only: bool
    is_sensitive: bool
    source: str
    synonyms: list[SettingSource]
    topic_name: str | None = None
    broker_id: int | None = None
    config_type: str | None = None


class SettingList(msgspec.Struct):
    """All settings, by name. kind: KafkaTopicConfigList, KafkaBrokerConfigList or KafkaClusterConfigList."""

    kind: str
    metadata: ListMetadata
    data: list[SettingResource]


class SettingPlace(NamedTuple):
    """Where settings are. owner: of a request; path: below the cluster, in front of a setting's name."""

    kind: SettingKind
    owner: Callable[[Request], SettingOwner]
    path: Callable[[SettingOwner], tuple[str, ...]]


def _topic(request: Request) -> SettingOwner:
    return SettingOwner(TOPIC, request.path_params["topic_name"])


def _node(request: Request) -> SettingOwner:
    return SettingOwner(BROKER, str(path_number(request, "broker_id")))


PLACES: Final = {
    "Topic": SettingPlace("KafkaTopicConfig", _topic, lambda owner: ("topics", owner.name, "configs")),
    "Broker": SettingPlace("KafkaBrokerConfig", _node, lambda owner: ("brokers", owner.name, "configs")),
    "Cluster": SettingPlace(
        "KafkaClusterConfig", lambda _: SettingOwner(BROKER, ALL_BROKERS), lambda _: ("broker-configs",)
    ),
}


class V3Settings:
    """Answers what is asked of settings."""

    def __init__(self, answers: V3Answers, topics: TopicAdmin) -> None:
        self._answers = answers
        self._topics = topics
        self._settings = SettingAdmin(answers.cluster)

    def handlers(self) -> dict[str, Handler]:
        """By operation, as the table of routes names them."""
        handler = self._answers.handler
        found = {
            "listAllTopicSettingsV3": handler(self._of_all_topics),
            "listAllBrokerSettingsV3": handler(self._of_all_nodes),
        }
        for name, place in PLACES.items():
            found |= {
                f"list{name}SettingsV3": handler(self._list(place)),
                f"alter{name}SettingsV3": handler(self._alter(place)),
                f"get{name}SettingV3": handler(self._get(place)),
                f"set{name}SettingV3": handler(self._set(place)),
                f"reset{name}SettingV3": handler(self._reset(place)),
            }
        return found

    async def _of_all_topics(self, request: Request, links: RestLinks) -> SettingList:
        topics = await self._topics.readable_topics(sender_of(request.scope))
        owners = [SettingOwner(TOPIC, name) for name in topics]
        return await self._shown(links, PLACES["Topic"], owners, ("topics", "-", "configs"))

    async def _of_all_nodes(self, _request: Request, links: RestLinks) -> SettingList:
        nodes = (await self._answers.cluster.metadata([])).nodes
        owners = [SettingOwner(BROKER, str(node)) for node in sorted(nodes)]
        return await self._shown(links, PLACES["Broker"], owners, ("brokers", "-", "configs"))

    def _list(self, place: SettingPlace) -> V3Call:
        async def answer(request: Request, links: RestLinks) -> SettingList:
            owner = await self._owner(place, request)
            return await self._shown(links, place, [owner], place.path(owner))

        return answer

    def _get(self, place: SettingPlace) -> V3Call:
        async def answer(request: Request, links: RestLinks) -> SettingResource:
            owner = await self._owner(place, request)
            ((_, settings),) = await self._settings.described([owner])
            for each in settings:
                if each.name == request.path_params["name"]:
                    return _resource(links, place, owner, each)
            raise no_such_setting(request.path_params["name"])

        return answer

    def _alter(self, place: SettingPlace) -> V3Call:
        async def answer(request: Request, _links: RestLinks) -> None:
            wanted = await self._answers.wanted(request, WantedChanges)
            owner = await self._owner(place, request)
            await self._settings.change(owner, wanted.data, validate_only=wanted.validate_only)

        return answer

    def _set(self, place: SettingPlace) -> V3Call:
        async def answer(request: Request, _links: RestLinks) -> None:
            wanted = await self._answers.wanted(request, WantedValue)
            owner = await self._owner(place, request)
            change = WantedChange(request.path_params["name"], wanted.value, "SET")
            await self._settings.change(owner, [change], validate_only=False)

        return answer

    def _reset(self, place: SettingPlace) -> V3Call:
        async def answer(request: Request, _links: RestLinks) -> None:
            owner = await self._owner(place, request)
            change = WantedChange(request.path_params["name"], None, "DELETE")
            await self._settings.change(owner, [change], validate_only=False)

        return answer

    async def _owner(self, place: SettingPlace, request: Request) -> SettingOwner:
        """Whose settings are asked for. Problem 404 where there is no such node."""
        if place.kind == "KafkaBrokerConfig":
            await self._answers.node(request)
        return place.owner(request)

    async def _shown(
        self, links: RestLinks, place: SettingPlace, owners: list[SettingOwner], path: tuple[str, ...]
    ) -> SettingList:
        found = [
            _resource(links, place, owner, each)
            for owner, settings in await self._settings.described(owners)
            for each in settings
        ]
        return SettingList(f"{place.kind}List", links.listed(*path), found)


def _resource(links: RestLinks, place: SettingPlace, owner: SettingOwner, setting: FoundSetting) -> SettingResource:
    of = {"KafkaTopicConfig": "topic", "KafkaBrokerConfig": "broker"}.get(place.kind)
    names = [("broker-config", setting.name)] if of is None else [(of, owner.name), ("config", setting.name)]
    return SettingResource(
        place.kind,
        links.metadata((*place.path(owner), setting.name), *names),
        links.cluster_id,
        setting.name,
        setting.value,
        setting.source == _DEFAULT,
        setting.is_read_only,
        setting.is_sensitive,
        setting.source,
        setting.synonyms,
        topic_name=owner.name if of == "topic" else None,
        broker_id=int(owner.name) if of == "broker" else None,
        config_type="BROKER" if of is None else None,
    )
