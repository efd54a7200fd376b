"""Which registrations of brokers are taken (KIP-631), and what is lost before them.

Lost is what was in directories that are named no more; and, behind a stop that was not clean, perhaps the end of what
counted as soon as the operating system had it (KIP-966).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from duramen.config import BrokerConfig, topic_setting
from duramen.errors import ErrorCode, KafkaError
from duramen.machines.contract import LogRecord
from duramen.machines.metadata import leaders
from duramen.machines.metadata.commands import RegisterBroker
from duramen.machines.metadata.features import OFFERED
from duramen.machines.metadata.image import MetadataImage

DURABILITY: Final = "duramen.ack.durability"
PAGE_CACHE: Final = "page-cache"


def check_registration(image: MetadataImage, command: RegisterBroker, *, may_live: bool) -> None:
    """KafkaError where it is refused. may_live: the process that has this id may still be there.

    With a directory in common it is gone: its lock on that shows it.
    """
    known = image.brokers.get(command.node_id)
    if known is not None and may_live and _is_elsewhere(known.directories, command.directories):
        raise KafkaError(
            ErrorCode.DUPLICATE_BROKER_REGISTRATION,
            f"Another broker is registered with id {command.node_id}, in other log directories. If it was stopped, "
            "this one is taken when the other one's session has ended.",
        )
    addresses = {(endpoint.host, endpoint.port) for endpoint in command.endpoints}
    for other in image.brokers.values():
        if other.id == command.node_id:
            continue
        for endpoint in other.endpoints:
            if (endpoint.host, endpoint.port) in addresses:
                raise KafkaError(
                    ErrorCode.INVALID_REGISTRATION,
                    f"Broker {other.id} is registered at {endpoint.host}:{endpoint.port}. Set advertised.listeners to "
                    "an address of this one, or unregister the other one if it is gone for good.",
                )
        if set(other.directories) & set(command.directories):
            raise KafkaError(
                ErrorCode.INVALID_REGISTRATION,
                f"Broker {other.id} is registered with a log directory of the same id: one of them is a copy.",
            )
    _check_features(image, command)


def _is_elsewhere(before: tuple[bytes, ...], now: tuple[bytes, ...]) -> bool:
    return bool(before and now) and not set(before) & set(now)


def _check_features(image: MetadataImage, command: RegisterBroker) -> None:
    """The broker can do what the levels say; what it does not name it cannot do.

    Levels of what nobody here offers mean nothing: a directory that was Kafka's has some of share groups, say.
    """
    ranges = {name: (low, high) for name, low, high in command.features}
    asked = {*ranges, *(name for name, low, _ in OFFERED if low == 0)}
    for name in sorted(asked & image.features.keys()):
        level = image.features[name]
        low, high = ranges.get(name, (0, 0))
        if not low <= level <= high:
            raise KafkaError(
                ErrorCode.UNSUPPORTED_VERSION,
                f"Unable to register because the broker does not support finalized version {level} of {name}. The "
                f"broker wants a version between {low} and {high}, inclusive.",
            )


def losses(image: MetadataImage, config: BrokerConfig, command: RegisterBroker) -> list[LogRecord]:
    """The next changes of partitions by what this registration shows to be lost; none when there is no more."""
    if not image.brokers.keys() - {command.node_id}:
        return []  # it brought the log along that names the partitions: its disks were not emptied
    active = image.active_ids() - {command.node_id}
    lost = leaders.lose(image, command.node_id, _lost_directories(image, command), active)
    if lost or _has_stopped_cleanly(image, command):
        return lost
    return leaders.leave_behind(image, command.node_id, _page_cache_topics(image, config, command.node_id), active)


def _has_stopped_cleanly(image: MetadataImage, command: RegisterBroker) -> bool:
    """Whether all that the broker's last process had is on its disks: or it is still this process."""
    known = image.brokers.get(command.node_id)
    if known is None:
        return False
    return command.incarnation_id == known.incarnation_id or command.previous_broker_epoch == known.epoch


def _page_cache_topics(image: MetadataImage, config: BrokerConfig, node_id: int) -> Callable[[str], bool]:
    """Says of a topic whether this broker counts its records as soon as the operating system has them.

    Files of nodes are taken to say the same of that as the controller's own.
    """
    default, own = image.broker_config(None), image.broker_config(node_id)
    others = config.with_dynamic(default, cluster_default=True).with_dynamic(own).string(DURABILITY)

    def counts(name: str) -> bool:
        text = image.topic_config(name).get(DURABILITY)
        return (others if text is None else topic_setting(DURABILITY).parse(text)) == PAGE_CACHE

    return counts


def _lost_directories(image: MetadataImage, command: RegisterBroker) -> Callable[[bytes], bool]:
    known = image.brokers.get(command.node_id)
    present = frozenset(command.directories)
    if known is not None and not known.directories:
        return lambda home: False  # registered without, as by an older release
    before = frozenset(known.directories if known is not None else ())
    if before & present:
        # A broker goes on naming a directory whose partitions it misses: of those it does not name, nothing is missing
        # but what the log says was there.
        return (before - present).__contains__
    return lambda home: home not in present
