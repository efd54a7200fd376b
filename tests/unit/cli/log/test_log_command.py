"""`duramen log`: what is found in directories made by hand, sound and damaged in known ways."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from crc32c import crc32c
from tests.worlds.transactional_log import UNCOMMITTED, write

import duramen
from duramen.cli.main import main
from duramen.model import TopicPartition, topic_id_text
from duramen.storage.checkpoint.kafka_files import MetaProperties, encode_meta, encode_offsets
from duramen.storage.checkpoint.scrub_progress import ScrubProgress, write_progress
from duramen.storage.files.os_disk import RealDisk
from duramen.storage.segment.corruption import Damage
from duramen.storage.segment.index import OffsetIndex, TimeIndex
from duramen.storage.segment.partition_metadata import encode_partition_metadata
from duramen.storage.segment.seal import compute_seal
from duramen.storage.segment.segment import file_name
from duramen.wire.batch import build_batch, parse_header
from duramen.wire.batch_filter import empty_batch
from duramen.wire.seal import decode_seal

TOPIC_ID = topic_id_text(bytes(range(16)))


def batch(base: int, count: int, timestamp: int = 1000, compression: int = 0) -> bytes:
    made = [
        (f"k{base + i}".encode(), f"value {base + i}".encode(), [(b"h", b"x")] if i == 0 else [], timestamp + i)
        for i in range(count)
    ]
    return bytes(build_batch(made, base_offset=base, leader_epoch=1, compression=compression))


def write_segment(directory: Path, base: int, batches: list[tuple[int, bytes, int]], *, sealed: bool) -> Path:
    """batches: (base offset, bytes, greatest timestamp) each; indexes have one entry a batch."""
    path = directory / file_name(base, ".log")
    offsets, times = OffsetIndex(), TimeIndex()
    content = b""
    last = base - 1
    for start, data, timestamp in batches:
        last = start + int.from_bytes(data[23:27], "big")
        offsets.add(last - base, len(content))
        times.add(timestamp, last - base)
        content += data
    path.write_bytes(content)
    (directory / file_name(base, ".index")).write_bytes(offsets.encode())
    (directory / file_name(base, ".timeindex")).write_bytes(times.encode())
    if sealed:
        file = RealDisk().open(str(path))
        try:
            (directory / file_name(base, ".seal")).write_bytes(compute_seal(file, len(content), base, last).encode())
        finally:
            file.close()
    return path


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A data directory, closed cleanly, of one partition with a sealed and an active segment: offsets 0 to 9."""
    directory = tmp_path / "data"
    partition = directory / "flights-0"
    partition.mkdir(parents=True)
    (directory / "meta.properties").write_bytes(encode_meta(MetaProperties("cluster", 1, "directory")))
    (directory / ".kafka_cleanshutdown").write_text("{}")
    (partition / "partition.metadata").write_bytes(encode_partition_metadata(TOPIC_ID))
    write_segment(partition, 0, [(0, batch(0, 3), 1002), (3, batch(3, 3, 2000, 1), 2002)], sealed=True)
    write_segment(partition, 6, [(6, batch(6, 2, 3000), 3001), (8, batch(8, 2, 4000), 4001)], sealed=False)
    (directory / "flights-1.0123-delete").mkdir()
    return directory


def verify(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, dict[str, Any]]:
    code = main(["log", "verify", "--json", *arguments])
    (report,) = json.loads(capsys.readouterr().out)
    return code, report


def flip(path: Path, position: int) -> None:
    content = bytearray(path.read_bytes())
    content[position] ^= 0x01
    path.write_bytes(content)


def test_sound_directory(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, report = verify(capsys, str(data), "--records")
    assert code == 0
    assert report["findings"] == []
    assert (report["cluster_id"], report["node_id"], report["clean"]) == ("cluster", 1, True)
    assert report["journal_entries"] is None
    (partition,) = report["partitions"]
    assert (partition["partition"], partition["topic_id"], partition["records"]) == ("flights-0", TOPIC_ID, 10)
    assert [(s["base_offset"], s["end_offset"], s["sealed"], s["max_timestamp"]) for s in partition["segments"]] == [
        (0, 6, True, 2002),
        (6, 10, False, 4001),
    ]


def test_people_get_a_table_and_a_verdict(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["log", "verify", str(data)]) == 0
    text = capsys.readouterr().out
    assert "closed cleanly" in text
    assert "flights-0" in text
    assert text.rstrip().endswith("everything is sound")
    assert max(map(len, text.splitlines()[1:])) <= 80


def test_what_was_deleted_below_the_log_start_is_not_counted(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It lies in its file until that goes as a whole; no reader sees it."""
    (data / "log-start-offset-checkpoint").write_bytes(encode_offsets({TopicPartition("flights", 0): 4}))
    code, report = verify(capsys, str(data))
    (partition,) = report["partitions"]
    assert (code, partition["start_offset"], partition["records"]) == (0, 4, 6)
    assert partition["readable"] == [[4, 9]]
    assert [segment["records"] for segment in partition["segments"]] == [6, 4]
    assert main(["log", "verify", str(data)]) == 0
    told = capsys.readouterr().out.splitlines()
    assert told[2].split()[:6] == ["flights-0", "2", "1", "4", "10", "6"]
    assert told[-1].startswith("6 records")


@pytest.mark.parametrize(
    ("name", "position", "kind", "what"),
    [
        (".log", 80, "damage", "the batch at offset 0 is damaged"),
        (".log", 12, "damage", "the bytes differ from the seal"),  # the leader epoch is outside of the batch's CRC
        (".index", 3, "index", "do not ascend"),
        (".index", 15, "index", "leads to byte"),
        (".timeindex", 6, "index", "younger than its entry's time"),
        (".seal", 30, "index", "is damaged"),
    ],
)
def test_one_flipped_bit_is_found(
    data: Path, capsys: pytest.CaptureFixture[str], name: str, position: int, kind: str, what: str
) -> None:
    path = data / "flights-0" / file_name(0, name)
    if name == ".timeindex":
        path.write_bytes((1000).to_bytes(8, "big") + (2).to_bytes(4, "big"))
    elif name == ".index" and position == 3:
        path.write_bytes(b"".join(number.to_bytes(4, "big") for number in (5, 90, 4, 95)))
        what = "do not ascend"
    else:
        flip(path, position)
    code, report = verify(capsys, str(data))
    assert code == 1
    found = [f for f in report["findings"] if f["kind"] == kind and what in f["what"]]
    assert found, report["findings"]
    assert found[0]["path"] == str(path)


def test_damage_ends_where_the_next_sound_batch_starts(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = data / "flights-0" / file_name(6, ".log")
    sound = verify(capsys, str(data))[1]["partitions"][0]["segments"][1]
    flip(path, 80)
    code, report = verify(capsys, str(data))
    assert code == 1
    (finding,) = report["findings"]
    assert (finding["kind"], finding["start"], finding["offset"]) == ("damage", 0, 6)
    assert 0 < finding["end"] < path.stat().st_size
    damaged = report["partitions"][0]["segments"][1]
    assert (damaged["end_offset"], damaged["batches"]) == (sound["end_offset"], sound["batches"] - 1)


def test_every_bit_of_a_sealed_segment_counts(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = data / "flights-0" / file_name(0, ".log")
    sound = path.read_bytes()
    for position in range(0, len(sound), 7):
        flip(path, position)
        code, report = verify(capsys, str(data))
        assert code == 1, position
        assert any(f["kind"] == "damage" for f in report["findings"])
        path.write_bytes(sound)
    assert verify(capsys, str(data))[0] == 0


def test_shortened_segment_is_damage(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = data / "flights-0" / file_name(0, ".log")
    path.write_bytes(path.read_bytes()[:-1])
    code, report = verify(capsys, str(data))
    assert code == 1
    assert {f["what"].split(",")[0] for f in report["findings"]} >= {f"it has {path.stat().st_size} bytes"}


def test_tail_after_a_crash_is_no_damage_above_the_recovery_point(
    data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (data / ".kafka_cleanshutdown").unlink()
    path = data / "flights-0" / file_name(6, ".log")
    path.write_bytes(path.read_bytes()[:-5])
    points = data / "recovery-point-offset-checkpoint"
    points.write_bytes(encode_offsets({TopicPartition("flights", 0): 8}))
    (data / "flights-0" / file_name(6, ".index")).unlink()
    (data / "flights-0" / file_name(6, ".timeindex")).unlink()
    code, report = verify(capsys, str(data))
    assert code == 0
    assert [(f["kind"], f["offset"]) for f in report["findings"]] == [("tail", 8)]

    points.write_bytes(encode_offsets({TopicPartition("flights", 0): 10}))
    code, report = verify(capsys, str(data))
    assert code == 1
    assert [(f["kind"], f["offset"]) for f in report["findings"]] == [("damage", 8)]


def test_producers_half_written_by_a_crash_are_nothing_wrong(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A checkpoint writes them before it says that everything up to their offset is on disk."""
    (data / ".kafka_cleanshutdown").unlink()
    (data / "recovery-point-offset-checkpoint").write_bytes(encode_offsets({TopicPartition("flights", 0): 8}))
    for suffix in (".snapshot", ".producers"):
        (data / "flights-0" / file_name(10, suffix)).write_bytes(b"")
    code, report = verify(capsys, str(data))
    assert (code, {f["kind"] for f in report["findings"]}) == (0, {"tail"})

    (data / "flights-0" / file_name(8, ".producers")).write_bytes(b"")
    code, report = verify(capsys, str(data))
    assert (code, {f["kind"] for f in report["findings"]}) == (1, {"tail", "index"})


def test_reserved_space_is_no_tail(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = data / "flights-0" / file_name(6, ".log")
    path.write_bytes(path.read_bytes() + bytes(5000))
    assert verify(capsys, str(data))[0] == 0


def test_a_partition_without_a_segment_is_damage(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for path in (data / "flights-0").glob("*.log"):
        path.unlink()
    code, report = verify(capsys, str(data))
    assert code == 1
    assert "it has no segment" in [each["what"] for each in report["findings"]]


def test_overlapping_segments_are_damage(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_segment(data / "flights-0", 9, [(9, batch(9, 2), 1001)], sealed=False)
    code, report = verify(capsys, str(data))
    assert code == 1
    assert "it starts below offset 10" in report["findings"][0]["what"]


def test_records_that_cannot_be_opened(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    # A sound checksum over records that are none: only --records can see it.
    made = bytearray(batch(6, 2, 3000))
    made[61:] = b"\xff" * (len(made) - 61)
    made[17:21] = crc32c(bytes(made[21:])).to_bytes(4, "big")
    write_segment(data / "flights-0", 6, [(6, bytes(made), 3001)], sealed=False)
    assert verify(capsys, str(data))[0] == 0
    code, report = verify(capsys, str(data), "--records")
    assert code == 1
    assert "cannot be read" in report["findings"][0]["what"]


def test_one_partition_alone(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(data / "flights-0", data / "flights-1")
    code, report = verify(capsys, str(data / "flights-1"))
    assert code == 0
    assert [p["partition"] for p in report["partitions"]] == ["flights-1"]


def test_a_batch_that_compaction_has_emptied_counts_for_no_look_up_by_time(
    data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    emptied = bytes(empty_batch(parse_header(batch(3, 3, 3000))))
    write_segment(data / "flights-0", 0, [(0, batch(0, 3), 1002), (3, emptied, 1002)], sealed=True)
    code, report = verify(capsys, str(data))
    assert (code, report["findings"]) == (0, [])
    assert report["partitions"][0]["segments"][0]["max_timestamp"] == 1002


def test_directory_in_use_and_no_directory(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with (data / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert main(["log", "verify", str(data)]) == 2
    assert "another process" in capsys.readouterr().err
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")
    for given, said in (([str(tmp_path / "empty")], "no data directory"), ([], "there is no ./duramen-data here")):
        assert main(["log", "verify", *given]) == 2
        assert said in capsys.readouterr().err
    assert main(["log", "dump", str(data / "meta.properties")]) == 2
    assert "neither a segment (.log) nor a partition's directory" in capsys.readouterr().err


def dump(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[str]:
    assert main(["log", "dump", *arguments]) == 0
    return capsys.readouterr().out.splitlines()


def test_dump_batches(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    partition = str(data / "flights-0")
    lines = dump(capsys, partition)
    assert [line.split()[0] for line in lines] == ["0..2", "3..5", "6..7", "8..9"]
    assert "gzip" in lines[1]
    told = [json.loads(line) for line in dump(capsys, partition, "--json", "--from", "4", "--count", "2")]
    assert [(t["base_offset"], t["last_offset"], t["codec"]) for t in told] == [(3, 5, "gzip"), (6, 7, "none")]
    assert len(dump(capsys, str(data / "flights-0" / file_name(6, ".log")))) == 2


def test_dump_records(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    partition = str(data / "flights-0")
    told = [json.loads(line) for line in dump(capsys, partition, "--records", "--json", "--from", "4")]
    assert [t["offset"] for t in told] == list(range(4, 10))
    assert told[2] == {
        "topic": "flights",
        "partition": 0,
        "offset": 6,
        "timestamp": 3000,
        "key": "k6",
        "value": "value 6",
        "headers": [["h", "x"]],
    }
    assert dump(capsys, partition, "--records", "-n", "1") == ["0:0  1970-01-01T00:00:01.000Z  [h=x]  k0\tvalue 0"]


def test_dump_of_nothing_says_so(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["log", "dump", str(data / "flights-0"), "--from", "99"]) == 0
    assert capsys.readouterr() == ("", "nothing is stored there from offset 99 on\n")


def test_dump_goes_on_behind_damage(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["log", "dump", str(data / "flights-0")]) == 0
    sound = capsys.readouterr().out.splitlines()
    flip(data / "flights-0" / file_name(0, ".log"), 80)
    assert main(["log", "dump", str(data / "flights-0")]) == 1
    told = capsys.readouterr().out.splitlines()
    assert told[0].startswith("damaged  bytes 0..")
    assert told[1:] == sound[1:]
    assert main(["log", "dump", str(data / "flights-0"), "--json"]) == 1
    assert json.loads(capsys.readouterr().out.splitlines()[0])["damaged"] is True
    assert main(["log", "dump", str(data)]) == 2
    assert "holds no segments" in capsys.readouterr().err


def test_dump_tells_offsets_whose_segment_is_gone(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    partition = data / "flights-0"
    write_segment(partition, 20, [(20, batch(20, 1, 5000), 5000)], sealed=False)
    assert main(["log", "dump", str(partition)]) == 1
    told = capsys.readouterr().out.splitlines()
    assert told[4] == "missing  offsets 10..19: no segment holds them"
    assert told[5].startswith("20..20 ")
    assert main(["log", "dump", str(partition), "--json"]) == 1
    assert json.loads(capsys.readouterr().out.splitlines()[4]) == {
        "missing": True,
        "first_offset": 10,
        "last_offset": 19,
    }
    assert len(dump(capsys, str(partition), "--from", "20")) == 1


def test_a_seal_that_reaches_into_the_next_segment_is_told(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = data / "flights-0" / file_name(0, ".seal")
    seal = decode_seal(path.read_bytes(), str(path))
    seal.last_offset = 6
    path.write_bytes(seal.encode())
    _, report = verify(capsys, str(data))
    told = [finding["what"] for finding in report["findings"]]
    assert "it says that the segment ends with offset 6, the next one begins at 6" in told


def test_dump_tells_zeros_that_something_stands_behind(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Only zeros up to the end of a segment that grows are space that was reserved."""
    path = data / "flights-0" / file_name(6, ".log")
    content = path.read_bytes() + bytes(5000)
    path.write_bytes(content)
    assert len(dump(capsys, str(path))) == 2
    size = parse_header(content).size
    path.write_bytes(bytes(9000) + content[size:])
    for given in (data / "flights-0", path):
        assert main(["log", "dump", str(given)]) == 1
        told = capsys.readouterr().out.splitlines()
        assert "damaged  bytes 0..9000: no sound batch is here" in told
        assert told[-1].startswith("8..9")


def test_dump_tells_zeros_at_the_end_of_a_finished_segment(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = data / "flights-0" / file_name(0, ".log")
    content = path.read_bytes()
    size = parse_header(content).size
    path.write_bytes(content[:size] + bytes(len(content) - size))
    for given in (data / "flights-0", path):
        assert main(["log", "dump", str(given)]) == 1
        assert f"damaged  bytes {size}..{len(content)}: no sound batch is here" in capsys.readouterr().out


def test_dump_tells_zeros_where_a_growing_segment_was_sealed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = tmp_path / "data"
    subprocess.run([sys.executable, "-c", WRITER, str(data), "close"], check=True, timeout=60)
    path = data / "events-0" / file_name(0, ".log")
    size = path.stat().st_size
    path.write_bytes(bytes(size))
    assert main(["log", "dump", str(path)]) == 1
    assert f"damaged  bytes 0..{size}" in capsys.readouterr().out


def test_a_side_file_of_zeros_is_no_reserved_space(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / f"{file_name(0, '.log')}.dropped-0"
    path.write_bytes(bytes(5000))
    assert main(["log", "dump", str(path)]) == 1
    assert "damaged  bytes 0..5000" in capsys.readouterr().out


def test_dump_ends_with_2_where_it_cannot_read(
    data: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(disk: RealDisk, path: str, **_: bool) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO), path)

    monkeypatch.setattr(RealDisk, "open", fail)
    assert main(["log", "dump", str(data / "flights-0")]) == 2
    assert "Input/output error" in capsys.readouterr().err


WRITER = """
import os, sys, duramen
with duramen.open(sys.argv[1]) as log:
    events = log.topic("events", partitions=2)
    for number in range(50):
        events.append([duramen.Record(value=b"v%d" % number, key=b"k%d" % number)])
    if sys.argv[2] == "crash":
        os._exit(0)
"""


@pytest.mark.parametrize("end", ["close", "crash"])
def test_directory_of_the_engine_is_sound(tmp_path: Path, capsys: pytest.CaptureFixture[str], end: str) -> None:
    data = tmp_path / "data"
    subprocess.run([sys.executable, "-c", WRITER, str(data), end], check=True, timeout=60)
    code, report = verify(capsys, str(data), "--records")
    assert (code, report["findings"]) == (0, [])
    assert report["clean"] == (end == "close")
    assert sum(p["records"] for p in report["partitions"] if p["partition"].startswith("events-")) == 50
    assert (report["journal_entries"] > 50) == (end == "crash")


@pytest.mark.parametrize("whole", [True, False])
def test_what_is_gone_since_a_clean_stop_is_damage(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], whole: bool
) -> None:
    data = tmp_path / "data"
    subprocess.run([sys.executable, "-c", WRITER, str(data), "close"], check=True, timeout=60)
    gone = data / "events-0"
    if whole:
        shutil.rmtree(gone)
    else:
        os.truncate(gone / file_name(0, ".log"), 0)
        for index in gone.glob("*index"):
            index.unlink()
    code, report = verify(capsys, str(data))
    assert code == 1
    (finding,) = report["findings"]
    path = gone if whole else gone / file_name(0, ".log")
    assert (finding["kind"], finding["path"], finding["offset"]) == ("damage", str(path), 0)
    assert ("at the last clean stop" if whole else "were sealed") in finding["what"]
    assert verify(capsys, str(data / "events-1"))[0] == 0


@pytest.mark.parametrize(
    "pattern",
    [
        "events-*/*.snapshot",
        "events-*/*.producers",
        "events-*/leader-epoch-*",
        "events-*/partition.metadata",
        "recovery-point-*",
        "log-start-*",
        "duramen-ch*",
        "duramen-cl*",
        "duramen-journal-*.part",
    ],
)
def test_damaged_side_files_are_found(tmp_path: Path, capsys: pytest.CaptureFixture[str], pattern: str) -> None:
    data = tmp_path / "data"
    subprocess.run([sys.executable, "-c", WRITER, str(data), "close"], check=True, timeout=60)
    path = max(data.glob(pattern))
    path.write_bytes(b"?" + path.read_bytes()[1:-1])
    code, report = verify(capsys, str(data))
    assert code == 1
    assert [(f["kind"], f["path"]) for f in report["findings"]] == [("index", str(path))]
    assert main(["log", "repair", str(data), "--yes"]) == 0
    capsys.readouterr()
    duramen.open(data).close()
    assert verify(capsys, str(data))[0] == 0


@pytest.mark.parametrize("end", ["close", "crash"])
@pytest.mark.parametrize("vouched", [True, False])
def test_what_the_start_makes_again_is_no_damage(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], end: str, vouched: bool
) -> None:
    data = tmp_path / "data"
    subprocess.run([sys.executable, "-c", WRITER, str(data), "close"], check=True, timeout=60)
    subprocess.run([sys.executable, "-c", WRITER, str(data), end], check=True, timeout=60)
    if not vouched:
        (data / "duramen-directory").unlink()
    path = data / "events-1" / "partition.metadata"
    path.write_bytes(path.read_bytes().replace(b"topic_id: ", b"topic_iD: "))
    code, report = verify(capsys, str(data))
    assert (code, [(f["kind"], f["path"]) for f in report["findings"]]) == (1, [("index", str(path))])
    duramen.open(data).close()
    assert verify(capsys, str(data))[0] == 0


def test_a_flipped_bit_in_a_partitions_name_misses_no_partition(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = tmp_path / "data"
    subprocess.run([sys.executable, "-c", WRITER, str(data), "close"], check=True, timeout=60)
    path = data / "recovery-point-offset-checkpoint"
    path.write_bytes(path.read_bytes().replace(b"events 1", b"evants 1"))
    code, report = verify(capsys, str(data))
    assert (code, [(f["kind"], f["path"]) for f in report["findings"]]) == (1, [("index", str(path))])


@pytest.mark.parametrize("word", [b"cluster.id=", b"=", b"node.id=", b"directory.id="])
def test_a_flipped_bit_in_the_directorys_identity_is_found(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], word: bytes
) -> None:
    data = tmp_path / "data"
    subprocess.run([sys.executable, "-c", WRITER, str(data), "close"], check=True, timeout=60)
    path = data / "meta.properties"
    flip(path, path.read_bytes().index(word) + (len(word) if word != b"=" else 0))
    code, report = verify(capsys, str(data))
    assert code == 1
    (finding,) = report["findings"]
    assert finding["path"] == str(path)
    assert finding["kind"] == ("damage" if word in (b"cluster.id=", b"node.id=", b"directory.id=") else "index")
    path.unlink()
    code, report = verify(capsys, str(data))
    assert (code, [finding["what"] for finding in report["findings"]]) == (1, ["it is missing"])


def test_what_the_scrubber_knew_is_told(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    damage = Damage(str(data / "events-0" / file_name(0, ".log")), 0, 65536, 3, 9, "the bytes differ from the seal")
    write_progress(
        RealDisk(), str(data), ScrubProgress(1_760_000_000_000, 4096, (bytes(15) + b"\x01", 0), 0, 65536, (damage,))
    )
    _, report = verify(capsys, str(data))
    assert report["scrub"]["under_way"]
    assert report["scrub"]["damage"] == [damage.fields()]
    main(["log", "verify", str(data)])
    assert (
        "round of 2025-10-09T08:53:20.000Z had checked 4.0 KiB; it knew of 1 damaged range" in capsys.readouterr().out
    )


def test_damaged_journal_is_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = tmp_path / "data"
    subprocess.run([sys.executable, "-c", WRITER, str(data), "crash"], check=True, timeout=60)
    part = min(data.glob("duramen-journal-*.part"))
    content = part.read_bytes()
    flip(part, content.index(b"v20"))
    code, report = verify(capsys, str(data))
    assert code == 1
    assert {f["kind"] for f in report["findings"]} == {"damage"}
    assert report["findings"][0]["path"] == str(part)


def test_a_file_that_is_named_like_a_partition_is_passed_over(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """No start looks at it, either; verify ended at it."""
    (data / "notes-2024").write_text("keep me")
    assert main(["log", "verify", str(data)]) == 0
    assert main(["log", "repair", str(data)]) == 0
    assert "notes-2024" not in capsys.readouterr().out


def test_what_cannot_be_written_to_can_be_checked(
    data: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A disk that was mounted read-only behind an error is when somebody wants to know."""

    def refuse(disk: RealDisk, path: str) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), path)

    monkeypatch.setattr(RealDisk, "lock", refuse)
    assert main(["log", "verify", str(data)]) == 0
    assert "everything is sound" in capsys.readouterr().out


def test_dump_shows_transactions_as_they_lie_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with duramen.open(tmp_path) as log:
        write(log.topic("events"))
    place = str(tmp_path / "events-0")
    assert main(["log", "dump", place]) == 0
    markers = [line for line in capsys.readouterr().out.splitlines() if "control" in line]
    assert [line.split("  ")[-1] for line in markers] == [
        f"control {kind} by coordinator epoch 0" for kind in ("abort", "commit", "commit", "abort")
    ]
    assert main(["log", "dump", "--json", place]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row.get("marker") for row in rows if row["control"]] == ["abort", "commit", "commit", "abort"]
    assert not any("marker" in row for row in rows if not row["control"])
    assert main(["log", "dump", "--json", "--records", place]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert {row["offset"]: row["value"].encode() for row in rows if "value" in row} == UNCOMMITTED
