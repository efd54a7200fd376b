"""What a cluster begins with: Kafka's own snapshot, record for record, who is told which voters, and what starts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from duramen.config import load_broker_config
from duramen.errors import ConfigError, StorageError
from duramen.machines.metadata import codec
from duramen.machines.metadata.features import OFFERED
from duramen.partition.metadata.directory_checks import check_formation
from duramen.partition.metadata.formation import (
    Founding,
    InitialController,
    bootstrap,
    first_snapshot,
    format_node,
    new_id,
    parse_controllers,
    parse_id,
)
from duramen.storage import RealDisk, SnapshotId, SystemEntropy, is_shared, read_snapshot
from duramen.wire.batch import batches, records

ONE, TWO = "J8aAPcfLQt2bqs1JT_rMgQ", "MvDxzVmcRsaTz33bUuRU6A"
CLUSTER = "4L6g3nShT-eMCtK--X86sw"
LIST = f"1@127.0.0.1:9093:{ONE},2@127.0.0.1:9094:{TWO}"
KAFKA = bytes.fromhex(
    "0000000000000000000000ce00000000022d1d8769002000000002000001a2273fb13d000001a2273fb13dffffffffffffffffffffffff"
    "ffff000000032a0000000800000003160000000001a2273fb11600001e00000208000000050a000000010000ea010000040800000006d4"
    "010000030000000127c6803dc7cb42dd9baacd494ffacc81020b434f4e54524f4c4c45520a3132372e302e302e31238500000000010000"
    "0000000232f0f1cd599c46c693cf7ddb52e454e8020b434f4e54524f4c4c45520a3132372e302e302e3123860000000001000000000000"
    "0000000000030000003f0000000002f5fc8a90002000000000000001a2273fb146000001a2273fb146ffffffffffffffffffffffffffff"
    "000000011a00000008000000040600000000"
)
"""What `kafka-storage format --initial-controllers` of Kafka 4.3.1 writes for LIST."""
LAST_MS = 0x01A2273FB116
"""The time in its header; its batches have others, each its own."""


def timeless(content: bytes) -> bytes:
    """The file without the times at which its batches were made, and the sums over them."""
    out = bytearray(content)
    for position, _ in batches(memoryview(content)):
        for start, end in ((17, 21), (27, 43)):
            out[position + start : position + end] = bytes(end - start)
    return bytes(out)


def test_the_first_snapshot_is_kafkas() -> None:
    named = [
        (each.id, each.directory_id, [("CONTROLLER", each.host, each.port)]) for each in parse_controllers("", LIST)
    ]
    assert timeless(b"".join(first_snapshot(named, LAST_MS))) == timeless(KAFKA)


def test_the_bootstrap_snapshot_has_the_records_version() -> None:
    found = [
        (record.offset, bytes(record.key or b""), bytes(record.value or b""))
        for batch in bootstrap(7)
        for record in records(memoryview(batch), max_bytes=1 << 20)
    ]
    levels = [(name, highest) for name, _, highest in OFFERED]
    assert found == [
        (0, bytes([0, 0, 0, 3]), bytes(11)),
        (1, b"", b"\x01\x0c\x00\x11metadata.version\x00\x1e\x00"),
        *((offset, b"", bytes(codec.feature(*each).value or b"")) for offset, each in enumerate(levels[1:], 2)),
        (1 + len(levels), bytes([0, 0, 0, 4]), bytes(3)),
    ]


def test_controllers_are_written_as_kafka_has_them() -> None:
    found = parse_controllers("--x", f" 1@a:9093:{ONE}, 2@[::1]:9094:{TWO},")
    assert found == [InitialController(1, "a", 9093, ONE), InitialController(2, "::1", 9094, TWO)]
    assert ",".join(map(str, found)) == f"1@a:9093:{ONE},2@[::1]:9094:{TWO}"
    assert parse_controllers("--x", "3@b:1", with_directories=False) == [InitialController(3, "b", 1, "")]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "names no controller"),
        ("1@a", "is not ID@HOST:PORT:DIRECTORY-ID"),
        (f"a:9093:{ONE}", "is not ID@HOST:PORT:DIRECTORY-ID"),
        (f"x@a:9093:{ONE}", "is not ID@HOST:PORT:DIRECTORY-ID"),
        (f"1@:9093:{ONE}", "names no host"),
        (f"1@a:0:{ONE}", "names no port"),
        (f"1@a:9093:{ONE[:-1]}", "is no id"),
        (f"1@a:1:{ONE},1@b:1:{TWO}", "names node 1 twice"),
        (f"1@a:1:{ONE},2@a:1:{TWO}", "names address a:1 twice"),
        (f"1@a:1:{ONE},2@b:1:{ONE}", "names directory .* twice"),
    ],
)
def test_a_list_that_is_wrong_is_refused(text: str, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        parse_controllers("--x", text)


def test_ids_are_random_and_kafkas() -> None:
    entropy = SystemEntropy()
    drawn = {new_id(entropy) for _ in range(500)}
    assert len(drawn) == 500
    assert not any(each.startswith("-") or parse_id("--x", each) != each for each in drawn)


# ---- who is told what


def node(folder: Path, node_id: int = 1, **settings: str) -> dict[str, str]:
    return {
        "node.id": str(node_id),
        "log.dirs": str(folder / "data"),
        "metadata.log.dir": str(folder / "metadata"),
        "listeners": f"PLAINTEXT://127.0.0.1:9092,CONTROLLER://127.0.0.1:{9092 + node_id}",
        "controller.listener.names": "CONTROLLER",
        "controller.quorum.bootstrap.servers": "127.0.0.1:9093",
    } | {name.replace("_", "."): value for name, value in settings.items()}


def form(settings: dict[str, str], founding: Founding, cluster_id: str | None = CLUSTER) -> None:
    format_node(RealDisk(), SystemEntropy(), load_broker_config(None, settings), cluster_id, founding, 1000)


ALONE = {"listeners": "PLAINTEXT://127.0.0.1:9092", "controller.listener.names": ""}


@pytest.mark.parametrize(
    ("settings", "founding", "told"),
    [
        ({"process_roles": "broker", "listeners": "PLAINTEXT://127.0.0.1:9092"}, Founding(None, True), "no controller"),
        ({"node_id": 3}, Founding(parse_controllers("", LIST)), "does not name this node, 3"),
        (
            ALONE,
            Founding(parse_controllers("", LIST)),
            "could not reach this one",
        ),
        ({"listeners": "PLAINTEXT://:1,CONTROLLER://127.0.0.1:7"}, Founding(parse_controllers("", LIST)), "has port 7"),
    ],
)
def test_what_does_not_fit_the_node_is_refused(
    tmp_path: Path, settings: dict[str, Any], founding: Founding, told: str
) -> None:
    with pytest.raises(ConfigError, match=told):
        form(node(tmp_path, **settings), founding)
    assert not (tmp_path / "data" / "meta.properties").exists()


def test_a_voter_of_several_is_formatted(tmp_path: Path) -> None:
    settings = node(tmp_path)
    form(settings, Founding(parse_controllers("", LIST)))
    home = tmp_path / "metadata" / "__cluster_metadata-0"
    assert f"directory.id={ONE}\n" in (tmp_path / "metadata" / "meta.properties").read_text()
    found = [record.value for _, record in read_snapshot(RealDisk(), str(home), SnapshotId(0, 0))]
    assert len(found) == 4
    for name in ("data", "metadata"):
        assert is_shared(RealDisk(), str(tmp_path / name))
        assert (tmp_path / name / "bootstrap.checkpoint").exists()
    check_formation(RealDisk(), load_broker_config(None, settings))


def test_a_node_alone_is_formatted_without_the_sign_and_starts(tmp_path: Path) -> None:
    settings = node(tmp_path)
    form(settings, Founding(is_standalone=True), None)
    assert not is_shared(RealDisk(), str(tmp_path / "data"))
    check_formation(RealDisk(), load_broker_config(None, settings))


def test_a_broker_gets_no_voters(tmp_path: Path) -> None:
    settings = node(tmp_path, process_roles="broker", listeners="PLAINTEXT://127.0.0.1:9092")
    form(settings, Founding())
    assert [path.name for path in (tmp_path / "metadata" / "__cluster_metadata-0").glob("*.checkpoint")] == []
    assert is_shared(RealDisk(), str(tmp_path / "metadata"))
    check_formation(RealDisk(), load_broker_config(None, settings))


# ---- what starts


def test_a_node_that_names_controllers_does_not_make_its_directory_itself(tmp_path: Path) -> None:
    settings = node(tmp_path)
    config = load_broker_config(None, settings)
    with pytest.raises(StorageError, match=r"metadata is not formatted.*`duramen cluster init`: with --standalone"):
        check_formation(RealDisk(), config)
    del settings["controller.quorum.bootstrap.servers"]
    check_formation(RealDisk(), load_broker_config(None, settings))


def test_a_wiped_metadata_disk_is_not_taken_for_a_new_node(tmp_path: Path) -> None:
    settings = node(tmp_path)
    form(settings, Founding(is_standalone=True))
    (tmp_path / "metadata" / "meta.properties").unlink()
    with pytest.raises(StorageError, match="metadata is not formatted"):
        check_formation(RealDisk(), load_broker_config(None, settings))


def test_a_controller_alone_may_join_later(tmp_path: Path) -> None:
    settings = node(tmp_path, process_roles="controller", listeners="CONTROLLER://127.0.0.1:9093")
    form(settings, Founding())
    assert [path.name for path in (tmp_path / "metadata" / "__cluster_metadata-0").glob("*.checkpoint")] == []
    check_formation(RealDisk(), load_broker_config(None, settings))
