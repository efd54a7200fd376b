"""What clients of a broker with several log directories were told, held against what a start has found."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from tests.crash.broker_clients import GROUPS, SETTING, PartitionPromise, TopicPromise
from tests.crash.node_run import OFFSET_FETCH, OWN_TOPICS
from tests.crash.promises import require
from tests.worlds.broker_world import InProcess
from tests.worlds.stored_batches import stored_batches

from duramen.model import OFFSETS_TOPIC
from duramen.partition.metadata.controller import METADATA_PARTITION
from duramen.sim.world.directory_tree import Directory
from duramen.wire.batch import records
from duramen.wire.messages import API

Excused = Callable[[str], bool]
"""Whether a partition, by its name, may be offline, or have files that nobody wants."""


def check_topics(server: InProcess, topics: list[TopicPromise]) -> list[TopicPromise]:
    """Those that were made are there, those that were deleted are not; returns what is there."""
    image = server.broker.image
    there: list[TopicPromise] = []
    for topic in topics:
        found = image.topic(topic.name)
        if found is not None and topic.id is None and not topic.deleted:
            known = [each.id for each in topics if each is not topic]
            topic.id = None if found.id in known else found.id
        if found is None or found.id != topic.id:
            require(topic.delete_asked or not topic.made, f"{topic.name} is gone, and nobody asked for it")
            continue
        require(not topic.deleted, f"{topic.name} was deleted and is back")
        require(len(found.partitions) == len(topic.parts), f"{topic.name} has {len(found.partitions)} partitions")
        setting = image.topic_config(topic.name).get(SETTING)
        require(setting in topic.configs, f"{topic.name}: {SETTING} is {setting}, not one of {topic.configs}")
        topic.configs, topic.made, topic.delete_asked = [setting], True, False
        there.append(topic)
    nobodys = set(image.names()) - {topic.name for topic in there} - OWN_TOPICS
    require(not nobodys, f"topics that nobody made: {nobodys}")
    return there


def check_records(server: InProcess, topic: TopicPromise, excused: Excused, *, whole: bool = False) -> None:
    """Those that were acknowledged are there, in order, once, and nothing of another topic.

    whole: nothing is under way; what is found is the ledger.
    """
    for index, promise in enumerate(topic.parts):
        what = f"{topic.name}-{index}"
        partition = server.broker.partitions.find(topic.name, index)
        if partition is None:
            require(excused(what), f"{what} is offline")
            continue
        start, end = partition.log_start_offset, partition.high_watermark
        asked = max(promise.start, promise.start_asked)
        require(promise.start <= start <= asked, f"{what} starts at {start}, not at {promise.start} to {asked}")
        require(not whole or end == partition.log.end_offset, f"{what} ends at {end} for readers")
        found = {
            record.offset: bytes(record.value)
            for header, data in stored_batches(partition.log, start, end, 1 << 16)
            for record in records(data, header, max_bytes=1 << 20)
            if record.offset >= start
        }
        require(list(found) == list(range(start, end)), f"{what} has holes: {list(found)}, {start} to {end}")
        for offset, value in promise.stored.items():
            require(offset < start or found.get(offset) == value, f"{what}: the record at {offset} is lost")
        check_order(what, promise, found)
        if whole:
            promise.start = promise.start_asked = start
            promise.stored = found


def check_positions(server: InProcess, topic: TopicPromise, *, away: bool) -> None:
    """No group's position in the topic goes back."""
    request = API[OFFSET_FETCH].request
    wanted = [request.OffsetFetchRequestTopic(name=topic.name, partition_indexes=[0])]
    line = server.connect()
    for group in GROUPS:
        asked = topic.positions[group]
        reply = line.call(OFFSET_FETCH, 7, group_id=group, topics=wanted, require_stable=True)
        if not reply.topics:
            no_topic = server.broker.image.topic(OFFSETS_TOPIC) is None
            require(away or no_topic, f"{group} has no coordinator: {reply.error_code}")
            continue
        position = reply.topics[0].partitions[0].committed_offset
        require(position in asked, f"{group} goes on at {position} of {topic.name}, not at one of {asked}")
        topic.positions[group] = [position]


def check_files(server: InProcess, excused: Excused) -> None:
    """Each partition is in one directory, and no directory has anything of what was deleted."""
    topics, names = server.broker.image.topics.values(), server.disk.names
    wanted = Counter(f"{topic.name}-{index}" for topic in topics for index in range(len(topic.partitions)))
    wanted[str(METADATA_PARTITION)] = 1
    found = Counter(
        name
        for each in server.broker.store.directories
        for name in names.directory(each.path).names
        if isinstance(names.find(f"{each.path}/{name}"), Directory)
    )
    left, missing = ([name for name in each if not excused(name)] for each in (found - wanted, wanted - found))
    require(not left, f"left of what was deleted: {left}")
    require(not missing, f"in no directory: {missing}")


def check_order(what: str, promise: PartitionPromise, found: dict[int, bytes]) -> None:
    """Each record is one that a producer of this partition sent; of each, all from some sequence on, in order."""
    sent = {producer.id: producer.sent for producer in promise.producers}
    by_producer: dict[int, list[int]] = {each: [] for each in sent}
    for offset, value in found.items():
        producer, sequence = map(int, value.split(b" ", 2)[:2])
        theirs = sent.get(producer, [])[sequence : sequence + 1]
        require(theirs == [value], f"{what}: nobody produced the record at {offset}")
        by_producer[producer].append(sequence)
    for producer, sequences in by_producer.items():
        in_order = not sequences or sequences == list(range(sequences[0], sequences[-1] + 1))
        whole = not sequences or sequences[0] == 0 or promise.start_asked > 0
        require(in_order and whole, f"{what}: producer {producer}'s records are {sequences}")
