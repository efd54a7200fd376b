"""What the coordinators of a node are built on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from duramen.config import BrokerConfig
from duramen.machines.metadata.commands import NewTopic
from duramen.machines.metadata.image import MetadataImage
from duramen.model import TopicId
from duramen.partition.host.load_turns import LoadTurns
from duramen.partition.store.store import Store
from duramen.ports import Clock, Entropy, Executor
from duramen.server.api.authorizer import AccessControl
from duramen.server.api.services import EventReport, LiveSettings
from duramen.server.coordinators.staging_relocation import RelocationRules


class TopicCreator(Protocol):
    """Creates the topics that coordinators keep their state in."""

    def create(self, topics: list[NewTopic], done: Callable[[Any], None]) -> None: ...

    def new_topic(self, name: str) -> NewTopic: ...


class FollowedMetadata(Protocol):
    """The committed metadata, and what is called when it changes."""

    on_deleted: list[Callable[[str, TopicId], None]]
    on_leaders: list[Callable[[str], None]]
    on_topics: list[Callable[[list[str], bool], None]]
    on_reconfigured: list[Callable[[BrokerConfig], None]]

    @property
    def image(self) -> MetadataImage: ...

    def when_published(self, callback: Callable[[], None]) -> None:
        """Call back once no committed partition is still being made or deleted."""


@dataclass(frozen=True, slots=True)
class CoordinatorContext:
    """See the module. load_turns: of all coordinators; one slice of loading a turn."""

    clock: Clock
    executor: Executor
    entropy: Entropy
    access: AccessControl
    settings: LiveSettings
    store: Store
    controller: TopicCreator
    publisher: FollowedMetadata
    load_turns: LoadTurns
    report: EventReport
    relocation_rules: RelocationRules

    @property
    def image(self) -> MetadataImage:
        """The committed metadata."""
        return self.publisher.image

    @property
    def config(self) -> BrokerConfig:
        """The settings as they are now."""
        return self.settings.config
