"""Finalized levels of features (KIP-584): which updates are granted, and what Kafka says of the others.

A level says which formats the records of the metadata log may have. It goes up only: going back would take out of the
log what an older format has no words for, and Kafka refuses that, too.
"""

from __future__ import annotations

from duramen.errors import ErrorCode
from duramen.machines.contract import LogRecord
from duramen.machines.metadata import codec
from duramen.machines.metadata.commands import OK, FeatureUpdate, Result, UpdateFeatures
from duramen.machines.metadata.image import MetadataImage

UPGRADE = 1
SAFE_DOWNGRADE = 2
UNSAFE_DOWNGRADE = 3


def update(image: MetadataImage, command: UpdateFeatures) -> tuple[list[LogRecord], Result]:
    """Records of all updates, or of none when one of them is refused; the answer speaks for all of them."""
    levels = dict(image.features)
    for wanted in command.updates:
        problem = _problem(levels, command, wanted)
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
