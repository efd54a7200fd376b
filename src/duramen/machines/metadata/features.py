"""Finalized levels of features (KIP-584): which there are, which updates are granted, and what Kafka says of others.

The level of `metadata.version` says which formats the records of the metadata log may have. It is lowered only where
nothing of these has changed: going back would take out of the log what an older format has no words for, and Kafka
refuses that, too. The other features decide what clients do; they may be lowered again, to 0, which is off.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from duramen.config import BrokerConfig
from duramen.errors import ErrorCode
from duramen.machines.contract import LogRecord
from duramen.machines.metadata import codec
from duramen.machines.metadata.commands import OK, FeatureUpdate, Result, UpdateFeatures
from duramen.machines.metadata.image import BROKER_RESOURCE, MetadataImage

METADATA_VERSION: Final = "metadata.version"
TRANSACTION_VERSION: Final = "transaction.version"
GROUP_VERSION: Final = "group.version"


class Feature(NamedTuple):
    """lowest, highest: the levels offered; a highest of 0: none. needs: levels of others, for any above 0.

    What a new directory begins with is the highest; an old one keeps its level until somebody raises it.
    """

    name: str
    lowest: int
    highest: int
    needs: tuple[tuple[str, int], ...] = ()


_READABLE: Final = 7
"""3.3-IV3, the first level of `metadata.version` that Kafka 4 reads."""
_WITH_METADATA: Final = ((METADATA_VERSION, _READABLE),)

FEATURES: Final = (
    Feature(METADATA_VERSION, _READABLE, 30),  # 4.3-IV0, the first level whose records are written here
    Feature(TRANSACTION_VERSION, 0, 2, _WITH_METADATA),
    Feature(GROUP_VERSION, 0, 1, _WITH_METADATA),
)
OFFERED: Final = tuple((each.name, each.lowest, each.highest) for each in FEATURES if each.highest > 0)
"""Name, lowest and highest level: what brokers register with and ApiVersions tells."""

_OTHERS: Final = frozenset({"share.version", "streams.version", "eligible.leader.replicas.version"})
"""Kafka's, which are not offered here: they are off, and may be turned off."""
_NEW_RECORDS: Final = frozenset({7, 8, 11, 13, 14, 15, 17, 23, 30})
"""Levels of `metadata.version` from which on records are written otherwise than below."""
_RELEASES: Final = {_READABLE: "3.3-IV3"}

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
    records = [] if image.features else [codec.feature(name, highest) for name, _, highest in OFFERED]
    if MIN_IN_SYNC not in image.broker_config(None):
        records.append(codec.config(BROKER_RESOURCE, EVERY_BROKER, MIN_IN_SYNC, str(config.integer(MIN_IN_SYNC))))
    return records, True


def behind(levels: dict[str, int]) -> list[tuple[str, int, int]]:
    """Features whose level is not the highest: name, level, highest. The directory is older than this release."""
    return [(name, levels.get(name, 0), highest) for name, _, highest in OFFERED if levels.get(name, 0) < highest]


def update(image: MetadataImage, command: UpdateFeatures) -> tuple[list[LogRecord], Result]:
    """Records of all updates, or of none when one of them is refused; the answer speaks for all of them."""
    proposed = {**image.features, **{wanted.feature: wanted.level for wanted in command.updates}}
    levels = dict(image.features)
    for wanted in command.updates:
        problem = _problem(image, levels.get(wanted.feature, 0), proposed, command, wanted)
        if problem is not None:
            all_of_them = "The update failed for all features since the following feature had an error"
            return [], Result(ErrorCode.INVALID_UPDATE_VERSION, f"{all_of_them}: {problem}")
        levels[wanted.feature] = wanted.level
    if command.validate_only:
        return [], OK
    return [codec.feature(name, level) for name, level in levels.items() if level != image.features.get(name, 0)], OK


def _problem(
    image: MetadataImage, level: int, proposed: dict[str, int], command: UpdateFeatures, wanted: FeatureUpdate
) -> str | None:
    why = _reason(image, level, command, wanted)
    if why is None and wanted.feature == METADATA_VERSION:
        if wanted.level >= level:
            return None
        if not any(wanted.level < changed <= level for changed in _NEW_RECORDS):
            return None
        told = "Refusing to perform the requested downgrade because it might delete metadata information."
        if wanted.upgrade_type == UNSAFE_DOWNGRADE:
            told = "Unsafe metadata downgrade is not supported in this version."
        return f"Unsupported {METADATA_VERSION} downgrade from {level} to {wanted.level}. {told}"
    if why is None:
        why = _missing(proposed, wanted)
    return None if why is None else f"Invalid update version {wanted.level} for feature {wanted.feature}. {why}"


def _reason(image: MetadataImage, level: int, command: UpdateFeatures, wanted: FeatureUpdate) -> str | None:
    """Why the level is not to be had, whatever the feature."""
    if wanted.upgrade_type not in (UPGRADE, SAFE_DOWNGRADE, UNSAFE_DOWNGRADE):
        return "The controller does not support the given upgrade type."
    if wanted.level < 0:
        return "A feature version cannot be less than 0."
    unsupported = _unsupported(f"Local controller {command.node_id}", command.supported, wanted)
    for node_id, broker in sorted(image.brokers.items()):
        unsupported = unsupported or _unsupported(f"Broker {node_id}", broker.features, wanted)
    if unsupported is not None:
        return unsupported
    if wanted.level < level and wanted.upgrade_type == UPGRADE:
        how = "setting the upgrade type to either safe or unsafe downgrade"
        return f"Can't downgrade the version of this feature without {how}."
    if wanted.level > level and wanted.upgrade_type != UPGRADE:
        return "Can't downgrade to a newer version."
    return None


def _unsupported(who: str, ranges: tuple[tuple[str, int, int], ...], wanted: FeatureUpdate) -> str | None:
    """Who does not name a feature can do nothing of it: level 0."""
    low, high = next(((low, high) for name, low, high in ranges if name == wanted.feature), (0, 0))
    if low <= wanted.level <= high:
        return None
    return f"{who} does not support this feature." if high == 0 else f"{who} only supports versions {low}-{high}"


def _missing(proposed: dict[str, int], wanted: FeatureUpdate) -> str | None:
    feature = next((each for each in FEATURES if each.name == wanted.feature), None)
    if feature is None:
        return None if wanted.feature in _OTHERS else f"Feature {wanted.feature} not found."
    for name, level in feature.needs if wanted.level > 0 else ():
        if proposed.get(name, 0) < level:
            told = f"{name}={level} ({_RELEASES[level]})" if name == METADATA_VERSION else f"{name} level {level}"
            return f"{wanted.feature} could not be set to {wanted.level} because it depends on {told}"
    return None
