"""UpdateFeatures: the answers Kafka 4.3.1 gives where `metadata.version` is its only feature."""

from __future__ import annotations

from typing import Any

import pytest
from tests.worlds.broker_world import InProcess

from duramen.errors import ErrorCode
from duramen.machines.metadata import FeatureUpdate, MetadataImage, UpdateFeatures, features
from duramen.wire.messages import API

VERSION = "metadata.version"
UPGRADE, SAFE, UNSAFE = 1, 2, 3


def asked(version: int, *updates: tuple[str, int, int]) -> Any:
    made = []
    for name, level, kind in updates:
        item = API[57].request.FeatureUpdateKey(feature=name, max_version_level=level)
        if version >= 1:
            item.upgrade_type = kind
        made.append(item)
    return InProcess().connect().call(57, version, feature_updates=made)


@pytest.mark.parametrize("version", [0, 1, 2])
def test_the_level_that_it_has_is_granted(version: int) -> None:
    reply = asked(version, (VERSION, 30, UPGRADE))
    assert (reply.error_code, reply.error_message) == (0, None)
    if version <= 1:
        assert [(one.feature, one.error_code) for one in reply.results] == [(VERSION, 0)]


@pytest.mark.parametrize("version", [0, 1, 2])
@pytest.mark.parametrize(
    ("feature", "level", "words"),
    [
        ("no.such.feature", 1, "does not support this feature"),
        ("group.version", 1, "does not support this feature"),
        (VERSION, 31, "only supports versions 7-30"),
        (VERSION, 6, "only supports versions 7-30"),
        (VERSION, 29, "Can't downgrade"),
        (VERSION, -1, "cannot be less than 0"),
    ],
)
def test_other_levels_and_features_are_refused(version: int, feature: str, level: int, words: str) -> None:
    reply = asked(version, (VERSION, 30, UPGRADE), (feature, level, UPGRADE))
    assert reply.error_code == ErrorCode.INVALID_UPDATE_VERSION
    assert f"Invalid update version {level} for feature {feature}. " in reply.error_message
    assert words in reply.error_message
    if version <= 1:
        assert reply.results == []


@pytest.mark.parametrize(
    ("kind", "words"), [(SAFE, "Refusing"), (UNSAFE, "Refusing"), (0, "upgrade type"), (9, "type")]
)
def test_nothing_goes_down_whatever_the_kind_of_change(kind: int, words: str) -> None:
    for version in (1, 2):
        reply = asked(version, (VERSION, 29, kind))
        assert reply.error_code == ErrorCode.INVALID_UPDATE_VERSION
        assert words in reply.error_message


def test_the_api_is_advertised() -> None:
    apis = {api.api_key: (api.min_version, api.max_version) for api in InProcess().connect().call(18, 3).api_keys}
    assert apis[57] == (0, 2)


def raised(image: MetadataImage, *levels: int, validate_only: bool = False) -> int:
    """How many records it takes."""
    updates = tuple(FeatureUpdate(VERSION, level, UPGRADE) for level in levels)
    records, result = features.update(image, UpdateFeatures(1, ((VERSION, 7, 30),), updates, validate_only))
    assert result.error is ErrorCode.NONE
    return len(records)


def test_a_directory_that_was_kafkas_is_raised_once() -> None:
    image = MetadataImage()
    image.features[VERSION] = 25
    assert raised(image, 30) == 1
    assert raised(image, 30, validate_only=True) == 0
    assert raised(image, 25) == 0
    assert raised(image, 26, 30) == 1


def test_what_was_raised_is_told() -> None:
    server = InProcess()
    client = server.connect()
    for image in (server.broker.image, server.broker.controller.machine.image):  # type: ignore[attr-defined]
        image.features[VERSION] = 25
    item = API[57].request.FeatureUpdateKey(feature=VERSION, max_version_level=28)
    assert client.call(57, 1, feature_updates=[item], validate_only=True).error_code == 0
    assert server.broker.image.features[VERSION] == 25
    assert client.call(57, 1, feature_updates=[item]).error_code == 0
    finalized = client.call(18, 3).finalized_features
    assert {one.name: one.max_version_level for one in finalized} == {VERSION: 28, "kraft.version": 1}
