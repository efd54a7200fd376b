"""An image as records, and back: what a snapshot of the metadata log holds (KIP-630).

Kafka's order: features first, because `metadata.version` decides how the rest is read.
"""

from __future__ import annotations

from collections.abc import Iterator

from duramen.machines.contract import LogRecord
from duramen.machines.metadata import codec
from duramen.machines.metadata.application import Application
from duramen.machines.metadata.image import MetadataImage


def content(image: MetadataImage) -> Iterator[LogRecord]:
    """Records that build this image when they are applied to an empty one, in order."""
    for name, level in sorted(image.features.items(), key=lambda feature: (feature[0] != "metadata.version", feature)):
        yield codec.feature(name, level)
    for node_id in sorted(image.brokers):
        yield codec.broker_state(image.brokers[node_id])
    for name in image.names():
        topic = image.topics[name]
        yield codec.topic(name, topic.id)
        for index, partition in enumerate(topic.partitions):
            yield codec.partition_state(topic.id, index, partition)
    for (kind, resource), settings in sorted(image.configs.items()):
        for key, value in sorted(settings.items()):
            yield codec.config(kind, resource, key, value)
    if image.next_producer_id:
        yield codec.producer_ids(-1, -1, image.next_producer_id)
    for carried in image.carried:
        yield LogRecord(None, carried)


class Restoration:
    """Builds an image from a snapshot's records. Brokers come before partitions, so that no epoch begins with them."""

    def __init__(self) -> None:
        self.image = MetadataImage()
        self._application = Application(self.image)

    def take(self, record: LogRecord) -> None:
        """One data record. CORRUPT_MESSAGE or UNSUPPORTED_VERSION."""
        self._application.apply(*codec.decode(record))

    def take_control(self, record: LogRecord) -> None:
        """One control record."""
        codec.apply_control(self.image, record)

    def finish(self, end: int) -> MetadataImage:
        """The image as it was when everything below offset `end` was applied."""
        self.image.next_offset = end
        return self.image
