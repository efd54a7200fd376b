"""UpdateFeatures: the answers that Kafka 4.3.1 gives."""

from __future__ import annotations

from typing import Any

import pytest
from tests.worlds.broker_world import InProcess

from duramen.config import load_broker_config
from duramen.errors import ErrorCode
from duramen.machines.metadata import FeatureUpdate, MetadataImage, UpdateFeatures, codec, features
from duramen.machines.metadata.image import BrokerImage
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


def test_a_level_that_changes_is_an_event() -> None:
    node = InProcess()
    item = API[57].request.FeatureUpdateKey(feature="group.version", max_version_level=0, upgrade_type=SAFE)
    assert node.connect().call(57, 1, feature_updates=[item]).error_code == 0
    told = [fields for event, fields in node.events if event == "feature-level-changed"]
    assert [(each["feature"], each["before"], each["level"]) for each in told] == [("group.version", 1, 0)]


@pytest.mark.parametrize("version", [0, 1, 2])
@pytest.mark.parametrize(
    ("feature", "level", "words"),
    [
        ("no.such.feature", 1, "does not support this feature"),
        ("share.version", 1, "does not support this feature"),
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
    ("kind", "words"),
    [
        (SAFE, "Unsupported metadata.version downgrade from 30 to 29. Refusing to perform"),
        (UNSAFE, "Unsupported metadata.version downgrade from 30 to 29. Unsafe metadata downgrade is not supported"),
        (0, "upgrade type"),
        (9, "type"),
    ],
)
def test_the_metadata_s_newest_records_stay_whatever_the_kind_of_change(kind: int, words: str) -> None:
    for version in (1, 2):
        reply = asked(version, (VERSION, 29, kind))
        assert reply.error_code == ErrorCode.INVALID_UPDATE_VERSION
        assert words in reply.error_message


def test_the_api_is_advertised() -> None:
    apis = {api.api_key: (api.min_version, api.max_version) for api in InProcess().connect().call(18, 3).api_keys}
    assert apis[57] == (0, 2)


SUPPORTED = ((VERSION, 7, 30), ("transaction.version", 0, 2), ("group.version", 0, 1))


def updated(
    image: MetadataImage, *updates: tuple[str, int, int], validate_only: bool = False
) -> tuple[dict[str, int], str | None]:
    """The levels that are written, and why not."""
    made = tuple(FeatureUpdate(*update) for update in updates)
    records, result = features.update(image, UpdateFeatures(1, SUPPORTED, made, validate_only))
    assert (result.error is ErrorCode.NONE) == (result.message is None)
    return levels_of(records), result.message


def levels_of(records: list[Any]) -> dict[str, int]:
    """Features among the records."""
    decoded = [codec.decode(record) for record in records]
    return {message.name: message.feature_level for kind, message in decoded if kind == "FeatureLevelRecord"}


def raised(image: MetadataImage, *levels: int, validate_only: bool = False) -> int:
    """How many records it takes."""
    return len(updated(image, *((VERSION, level, UPGRADE) for level in levels), validate_only=validate_only)[0])


def offering(*ranges: tuple[str, int, int], levels: dict[str, int] | None = None) -> MetadataImage:
    """The image of a cluster with one broker that does as much."""
    image = MetadataImage()
    image.features = {VERSION: 30, **(levels or {})}
    image.start_broker(BrokerImage(2, 1, bytes(16), (), features=ranges))
    return image


def test_features_that_decide_what_clients_do_go_up_and_down() -> None:
    image = offering(*SUPPORTED)
    assert updated(image, ("transaction.version", 2, UPGRADE), ("group.version", 1, UPGRADE)) == (
        {"transaction.version": 2, "group.version": 1},
        None,
    )
    image.features |= {"transaction.version": 2, "group.version": 1}
    assert updated(image, ("transaction.version", 1, SAFE)) == ({"transaction.version": 1}, None)
    assert updated(image, ("transaction.version", 0, UNSAFE)) == ({"transaction.version": 0}, None)
    assert updated(image, ("group.version", 0, SAFE), validate_only=True) == ({}, None)
    assert updated(image, ("group.version", 1, SAFE)) == ({}, None)
    assert updated(image, ("share.version", 0, SAFE)) == ({}, None)


@pytest.mark.parametrize(
    ("update", "words"),
    [
        (("transaction.version", 1, UPGRADE), "Can't downgrade the version of this feature without setting"),
        (("transaction.version", 3, UPGRADE), "Local controller 1 only supports versions 0-2"),
        (("group.version", 1, SAFE), "Can't downgrade to a newer version."),
        (("group.version", 1, UNSAFE), "Can't downgrade to a newer version."),
        (("share.version", 1, UPGRADE), "Local controller 1 does not support this feature."),
        (("group.version", -1, SAFE), "A feature version cannot be less than 0."),
        (("no.such.version", 0, SAFE), "Feature no.such.version not found."),
        ((VERSION, 31, SAFE), "Local controller 1 only supports versions 7-30"),
    ],
)
def test_what_kafka_refuses(update: tuple[str, int, int], words: str) -> None:
    image = offering(*SUPPORTED, levels={"transaction.version": 2})
    levels, why = updated(image, ("transaction.version", 0, SAFE), update)
    if update[0] == "transaction.version":
        levels, why = updated(image, update)
    assert levels == {}
    assert why is not None
    assert words in why


def test_levels_below_which_no_record_changed_are_let_go() -> None:
    image = offering(*SUPPORTED)
    image.features[VERSION] = 29
    assert updated(image, (VERSION, 23, SAFE)) == ({VERSION: 23}, None)
    assert "Refusing to perform" in str(updated(image, (VERSION, 22, SAFE))[1])


def test_a_broker_of_an_older_release_holds_it_up() -> None:
    old = offering((VERSION, 7, 30))
    assert "Broker 2 does not support this feature." in str(updated(old, ("transaction.version", 2, UPGRADE))[1])
    older = offering((VERSION, 7, 30), ("transaction.version", 0, 1))
    assert updated(older, ("transaction.version", 1, UPGRADE)) == ({"transaction.version": 1}, None)
    assert "Broker 2 only supports versions 0-1" in str(updated(older, ("transaction.version", 2, UPGRADE))[1])


def test_without_readable_metadata_there_are_no_other_features() -> None:
    image = offering(*SUPPORTED)
    del image.features[VERSION]
    told = "group.version could not be set to 1 because it depends on metadata.version=7 (3.3-IV3)"
    assert told in str(updated(image, ("group.version", 1, UPGRADE))[1])
    assert updated(image, ("group.version", 1, UPGRADE), (VERSION, 30, UPGRADE))[1] is None


def test_a_new_log_begins_with_the_highest_levels_and_an_old_one_keeps_its_own() -> None:
    config = load_broker_config(None)
    image = MetadataImage()
    records, _ = features.begin_cluster(image, config)
    begun = levels_of(records)
    assert begun == {name: highest for name, _, highest in features.OFFERED}
    assert features.behind(begun) == []
    image.features[VERSION] = 29
    records, _ = features.begin_cluster(image, config)
    assert levels_of(records) == {}
    assert (VERSION, 29, 30) in features.behind(image.features)


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
    told = {one.name: one.max_version_level for one in finalized}
    assert told == {**{name: highest for name, _, highest in features.OFFERED}, VERSION: 28, "kraft.version": 1}
