"""Registrations of brokers that can do less, or more, than the finalized features ask."""

from __future__ import annotations

import pytest

from duramen.errors import ErrorCode, KafkaError
from duramen.machines.metadata import Endpoint, MetadataImage, RegisterBroker, registrations
from duramen.machines.metadata.features import METADATA_VERSION, TRANSACTION_VERSION

METADATA = (METADATA_VERSION, 7, 30)


def check(image: MetadataImage, *ranges: tuple[str, int, int]) -> None:
    """Register a broker that can do as much."""
    command = RegisterBroker(1, bytes(16), (Endpoint("PLAINTEXT", "localhost", 9092, 0),), None, (), ranges)
    registrations.check_registration(image, command, may_live=False)


@pytest.fixture
def image(monkeypatch: pytest.MonkeyPatch) -> MetadataImage:
    """Of a cluster that offers transactions of the second generation, and whose directory was Kafka's once."""
    monkeypatch.setattr(registrations, "OFFERED", (METADATA, (TRANSACTION_VERSION, 0, 2)))
    image = MetadataImage()
    image.features = {METADATA_VERSION: 30, TRANSACTION_VERSION: 2, "share.version": 1}
    return image


@pytest.mark.parametrize(
    ("ranges", "words"),
    [
        ((METADATA,), r"finalized version 2 of transaction.version. The broker wants a version between 0 and 0"),
        ((METADATA, (TRANSACTION_VERSION, 0, 1)), r"finalized version 2 of .* between 0 and 1, inclusive"),
        (((METADATA_VERSION, 7, 29), (TRANSACTION_VERSION, 0, 2)), r"version 30 of metadata.version"),
        ((METADATA, (TRANSACTION_VERSION, 0, 2), ("share.version", 2, 2)), r"version 1 of share.version"),
    ],
)
def test_a_broker_that_can_do_less_is_refused(
    image: MetadataImage, ranges: tuple[tuple[str, int, int], ...], words: str
) -> None:
    with pytest.raises(KafkaError, match=words) as caught:
        check(image, *ranges)
    assert caught.value.code == ErrorCode.UNSUPPORTED_VERSION


def test_what_nobody_offers_is_not_asked_of_it(image: MetadataImage) -> None:
    ranges = (METADATA, (TRANSACTION_VERSION, 0, 3), ("group.version", 0, 1))
    check(image, *ranges)


def test_one_of_an_older_release_comes_in_while_the_level_is_low(image: MetadataImage) -> None:
    del image.features[TRANSACTION_VERSION]
    check(image, METADATA)
