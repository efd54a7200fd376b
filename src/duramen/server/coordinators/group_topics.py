"""The topics of the committed metadata as consumer groups see them."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from duramen.machines.group.consumer.topic_view import TopicSeen
from duramen.machines.metadata.image import MetadataImage, TopicImage
from duramen.model import TopicId


class ImageTopics:
    """Always of the image there is now."""

    def __init__(self, image: Callable[[], MetadataImage]) -> None:
        self._image = image

    @property
    def version(self) -> int:
        return self._image().next_offset

    def topic(self, name: str) -> TopicSeen | None:
        image = self._image()
        found = image.topic(name)
        if found is None:
            return None
        return TopicSeen(found.id, len(found.partitions), _racks(image, found))

    def name_of(self, topic_id: TopicId) -> str | None:
        return self._image().topic_name(topic_id)

    def names(self) -> Iterable[str]:
        return self._image().topics


def _racks(image: MetadataImage, topic: TopicImage) -> tuple[tuple[str, ...], ...]:
    racks = {broker.id: broker.rack for broker in image.brokers.values() if broker.rack is not None}
    if not racks:
        return ()
    return tuple(
        tuple(sorted(racks[replica] for replica in partition.replicas if replica in racks))
        for partition in topic.partitions
    )
