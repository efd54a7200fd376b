"""A broker's epoch is the offset of its registration in the metadata log, and its clean stop names it."""

from __future__ import annotations

import json

from tests.worlds.broker_world import InProcess, Numbers

from duramen.machines.contract import LogRecord
from duramen.machines.metadata import codec
from duramen.sim.world.disk import CrashDisk
from duramen.wire.batch import batches, records

LOG = "/data/__cluster_metadata-0/00000000000000000000.log"


def stopped(server: InProcess) -> CrashDisk:
    done: list[bool] = []
    server.broker.stop(lambda: done.append(True))
    while not done:
        server.run()
        server.pass_ms(100)
    return server.disk


def registrations(disk: CrashDisk) -> list[tuple[int, int]]:
    """(offset, broker epoch) of each registration in the metadata log."""
    data = memoryview(disk.contents()[LOG])
    found = []
    for position, header in batches(data):
        if header.is_control or not header.count:
            continue
        for record in records(data[position : position + header.size], header, max_bytes=1 << 20):
            kind, message = codec.decode(LogRecord(record.key, record.value))
            if kind == "RegisterBrokerRecord":
                found.append((record.offset, message.broker_epoch))
    return found


def test_a_brokers_epoch_is_the_offset_of_its_registration_at_every_start() -> None:
    disk = CrashDisk()
    numbers = Numbers()
    epochs = []
    for start in range(4):
        server = InProcess(disk, entropy=numbers)
        epochs.append(server.broker.broker_epoch)
        server.connect().create_topic(f"t{start}")
        if start == 1:
            disk.kill()
            disk.power_on()
        else:
            disk = stopped(server)
            told = json.loads(disk.contents()["/data/.kafka_cleanshutdown"])
            assert told == {"version": 0, "brokerEpoch": epochs[-1]}
    assert registrations(disk) == [(epoch, epoch) for epoch in epochs]
    assert epochs == sorted(set(epochs))
