"""Finalized levels of features (KIP-584): which updates are granted, and what Kafka says of the others.

A level says which formats the records of the metadata log may have. It goes up only: going back would take out of the
log what an older format has no words for, and Kafka refuses that, too.
"""

from __future__ import annotations

from typing import Final

from duramen.config import BrokerConfig
from duramen.errors import ErrorCode
from duramen.machines.contract import LogRecord
from duramen.machines.metadata import codec
from duramen.machines.metadata.commands import OK, FeatureUpdate, Result, UpdateFeatures
from duramen.machines.metadata.image import BROKER_RESOURCE, MetadataImage

METADATA_VERSION: Final = ("metadata.version", 30)
"""The feature level a new log starts with: 4.3-IV0, the first whose records are written here."""
METADATA_FEATURE: Final = ("metadata.version", 7, 30)
"""Record formats that are read here: from 3.3-IV3 on, the first that Kafka 4 reads, to 4.3-IV0, which is written."""
MIN_IN_SYNC: Final = "min.insync.replicas"
EVERY_BROKER: Final = ""
"""The name of the resource whose settings are every broker's."""

UPGRADE = 1
SAFE_DOWNGRADE = 2
UNSAFE_DOWNGRADE = 3


def begin_cluster(image: MetadataImage, config: BrokerConfig) -> tuple[list[LogRecord], bool]:
    """Records that a log begins with, as far as it has none of them; the older ones of a Kafka have no second.

    They make the file's `min.insync.replicas` the cluster-wide setting, as Kafka does where leaders may be elected from
    eligible replicas (KIP-966): how many copies count is one answer, not one per node.
    """
    records = [] if image.features else [codec.feature(*METADATA_VERSION)]
    if MIN_IN_SYNC not in image.broker_config(None):
        records.append(codec.config(BROKER_RESOURCE, EVERY_BROKER, MIN_IN_SYNC, str(config.integer(MIN_IN_SYNC))))
    return records, True


def update(image: MetadataImage, command: UpdateFeatures) -> tuple[list[LogRecord], Result]:
    """Records of all updates, or of none when one of them is refused; the answer speaks for all of them."""
    levels = dict(image.features)
    for wanted in command.updates:
        problem = _problem(levels, command, wanted) or _problem_of_brokers(image, wanted)
        if problem is not None:
            why = f"Invalid update version {wanted.level} for feature {wanted.feature}. {problem}"
            all_of_them = "The update failed for all features since the following feature had an error"
            return [], Result(ErrorCode.INVALID_UPDATE_VERSION, f"{all_of_them}: {why}")
        levels[wanted.feature] = wanted.level
    if command.validate_only:
        return [], OK
    return [codec.feature(name, level) for name, level in levels.items() if level != image.features.get(name)], OK


def _problem(levels: dict[str, int], command: UpdateFeatures, wanted: FeatureUpdate) -> str | None:
    if wanted.upgrade_type not in (UPGRADE, SAFE_DOWNGRADE, UNSAFE_DOWNGRADE):
        return "The controller does not support the given upgrade type."
    if wanted.level < 0:
        return "A feature version cannot be less than 0."
    ranges = {name: (low, high) for name, low, high in command.supported}
    if wanted.feature not in ranges:
        return f"Local controller {command.node_id} does not support this feature."
    low, high = ranges[wanted.feature]
    if not low <= wanted.level <= high:
        return f"Local controller {command.node_id} only supports versions {low}-{high}"
    if wanted.level >= levels.get(wanted.feature, 0):
        return None
    if wanted.upgrade_type == UPGRADE:
        how = "setting the upgrade type to either safe or unsafe downgrade"
        return f"Can't downgrade the version of this feature without {how}."
    return "Refusing to perform the requested downgrade because it might delete metadata information."


def _problem_of_brokers(image: MetadataImage, wanted: FeatureUpdate) -> str | None:
    for node_id, broker in sorted(image.brokers.items()):
        for name, low, high in broker.features:
            if name == wanted.feature and not low <= wanted.level <= high:
                return f"Broker {node_id} only supports versions {low}-{high}"
    return None
