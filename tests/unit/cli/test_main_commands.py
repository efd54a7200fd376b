"""The client commands against a running node.

It is that of conftest.py, or the cluster that DURAMEN_TEST_BOOTSTRAP names, with which the same commands must work.
"""

from __future__ import annotations

import base64
import json
import os
import re
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.worlds.served_node import Served

from duramen.cli.main import main
from duramen.client import Cluster
from duramen.model import TopicPartition
from duramen.wire.batch import build_batch

RUN = [sys.executable, "-m", "duramen.cli.main"]


Run = Callable[..., Any]


def follower(topic: str, bootstrap: str, *more: str) -> subprocess.Popen[str]:
    follow = [*RUN, "consume", topic, "--follow", "--bootstrap", bootstrap, *more]
    return subprocess.Popen(follow, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def told(said: str) -> str:
    """What a member says beside that it waits for its group, which may take a second on a busy machine."""
    return "".join(line for line in said.splitlines() if not line.startswith("joining group "))


def test_topics(run: Run, topic: str) -> None:
    run("topic", "create", topic, "--partitions", "3", "--config", "retention.ms=86400000")
    assert "exists already" in run("topic", "create", topic, code=1)
    run("topic", "create", topic, "--if-not-exists")
    (listed,) = [found for found in run("topic", "list", "--json") if found["topic"] == topic]
    assert listed == {"topic": topic, "partitions": 3, "replicas": 1, "records": 0, "bytes": 0, "offline": 0}
    (described,) = run("topic", "describe", topic, "--json")
    assert [p["partition"] for p in described["partitions"]] == [0, 1, 2]
    assert all((p["start_offset"], p["end_offset"]) == (0, 0) for p in described["partitions"])
    assert described["settings"]["retention.ms"] == "86400000"
    assert re.fullmatch(r"[\w-]{22}", described["topic_id"])
    run("topic", "alter", topic, "--partitions", "5", "--set", "retention.bytes=1000", "--unset", "retention.ms")
    (described,) = run("topic", "describe", topic, "--json")
    assert len(described["partitions"]) == 5
    assert described["settings"]["retention.bytes"] == "1000"
    assert "retention.ms" not in described["settings"]
    assert topic in run("topic", "describe", topic)
    run("topic", "delete", topic, "--yes")
    assert "no such topic" in run("topic", "describe", topic, code=1)
    assert "no such topic" in run("topic", "delete", topic, "--yes", code=1)
    run("topic", "delete", topic, "--yes", "--if-exists")


def test_bad_topics_are_refused_in_one_line(run: Run, topic: str) -> None:
    assert "retention.ms" in run("topic", "create", topic, "--config", "retention.ms=soon", code=1)
    run("topic", "create", "no/slashes", code=1)
    run("topic", "create", topic, "--replication-factor", "3", code=1)
    assert "--yes" in run("topic", "delete", topic, code=2)


def test_settings(run: Run, topic: str) -> None:
    run("topic", "create", topic)
    every = run("config", "describe", "--topic", topic, "--all", "--json")
    assert {"retention.ms", "segment.bytes", "cleanup.policy"} <= {entry["name"] for entry in every}
    run("config", "alter", "--topic", topic, "--append", "cleanup.policy=compact")
    (policy,) = run("config", "describe", "--topic", topic, "--key", "cleanup.policy", "--json")
    assert policy == {
        "name": "cleanup.policy",
        "value": "delete,compact",
        "source": "dynamic-topic",
        "read_only": False,
    }
    run("config", "alter", "--topic", topic, "--subtract", "cleanup.policy=compact", "--set", "retention.ms=5000")
    text = run("config", "describe", "--topic", topic)
    assert "cleanup.policy=delete\n    dynamic-topic" in text
    assert "retention.ms=5000\n    dynamic-topic" in text
    run("config", "alter", "--topic", topic, "--set", "retention.ms=-7", code=1)
    node = {entry["name"]: entry for entry in run("config", "describe", "--all", "--json")}
    assert node["node.id"]["read_only"]
    assert node["log.dirs"]["source"] == "static-broker"


def test_a_node_or_setting_that_is_not_there(run: Run) -> None:
    assert "there is no node 77; there is " in run("config", "describe", "--node", "77", code=1)
    assert "no setting retention; `duramen config describe --all`" in run(
        "config", "describe", "--key", "retention", code=1
    )


def test_produce_and_consume(run: Run, topic: str, lines: Callable[..., str]) -> None:
    run("topic", "create", topic, "--partitions", "2")
    told = run("produce", topic, lines("a:1", "b:2", "c:3"), "-K", ":", "-H", "h=x", "-p", "1", "--json")
    assert told == {
        "topic": topic,
        "records": 3,
        "bytes": 3,
        "failed": 0,
        "unknown": 0,
        "partitions": {"1": {"first_offset": 0, "last_offset": 2}},
    }
    assert run("consume", topic) == "1\n2\n3\n"
    assert run("consume", topic, "--format", "key-value", "--from", "1", "-p", "1") == "b\t2\nc\t3\n"
    assert run("consume", topic, "--from", "-1", "-p", "1") == "3\n"
    assert run("consume", topic, "--from", "latest") == ""
    assert run("consume", topic, "--from", "1h") == "1\n2\n3\n"
    assert run("consume", topic, "--from", "@9000000000000") == ""
    assert run("consume", topic, "--count", "2") == "1\n2\n"
    records = [json.loads(line) for line in run("consume", topic, "--json").splitlines()]
    assert [(r["partition"], r["offset"], r["key"], r["value"], r["headers"]) for r in records] == [
        (1, 0, "a", "1", [["h", "x"]]),
        (1, 1, "b", "2", [["h", "x"]]),
        (1, 2, "c", "3", [["h", "x"]]),
    ]
    assert "lies outside" in run("consume", topic, "--from", "99", code=1)
    assert "no partition 7" in run("consume", topic, "-p", "7", code=1)
    assert "no such topic" in run("consume", topic + "x", code=1)


def test_json_copies_a_topic_without_loss(run: Run, topic: str, lines: Callable[..., str], tmp_path: Path) -> None:
    source = lines(
        '{"key": "k", "value": {"n": 1}, "headers": {"h": null}, "timestamp": 1700000000000}',
        '{"value_base64": "/w=="}',
        '{"key": "dead", "value": null}',
    )
    run("topic", "create", topic, topic + "-copy")
    run("produce", topic, source, "--format", "json")
    dumped = run("consume", topic, "--json")
    (tmp_path / "dump").write_text(dumped)
    run("produce", topic + "-copy", str(tmp_path / "dump"), "--format", "json", "--keep-partitions")
    assert run("consume", topic + "-copy", "--json") == dumped.replace(topic, topic + "-copy")
    assert json.loads(dumped.splitlines()[0])["timestamp"] == 1700000000000


def test_a_header_whose_name_is_no_text_stops_nobody(run: Run, topic: str, bootstrap: str) -> None:
    """The client library cannot give it: the record comes without its headers, and what follows comes too."""
    run("topic", "create", topic)
    now = int(time.time() * 1000)
    with Cluster(bootstrap) as cluster:
        for name in (b"odd", b"\xff\xfe", b"odd"):
            cluster.produce(TopicPartition(topic, 0), bytes(build_batch([(b"k", b"v", [(name, b"h")], now)])))
    environment = {**os.environ, "DURAMEN_BOOTSTRAP": bootstrap}
    done = subprocess.run([*RUN, "consume", topic, "--json"], env=environment, capture_output=True, timeout=60)
    read = [json.loads(line) for line in done.stdout.splitlines()]
    told = [["odd", "h"]]
    assert [(each["offset"], each.get("headers")) for each in read] == [(0, told), (1, None), (2, told)]
    said = f"{topic}-0, offset 1: the record's headers are left out, the name of one is not UTF-8\n"
    assert (done.stderr.decode(), done.returncode) == (said, 0)


@pytest.mark.parametrize("compression", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_every_compression(run: Run, topic: str, lines: Callable[..., str], compression: str) -> None:
    run("topic", "create", topic)
    run("produce", topic, lines(*map(str, range(1000))), "--compression", compression, "--acks", "1")
    assert run("consume", topic).split() == [str(n) for n in range(1000)]


def test_bad_lines_and_partitions(run: Run, topic: str, lines: Callable[..., str]) -> None:
    run("topic", "create", topic)
    assert "line 2: it is not JSON" in run("produce", topic, lines('{"a": 1}', "x"), "--key-field", "a", code=1)
    assert run("consume", topic) == '{"a": 1}\n'
    assert "line 1: there is no key separator" in run("produce", topic, lines("x"), "-K", ":", code=1)
    ages = lines('{"value": "b", "timestamp": 1}', '{"value": "c", "timestamp": 0}')
    assert "line 2: timestamp 0 cannot be written" in run("produce", topic, ages, "--format", "json", code=1)
    assert "no partition 3" in run("produce", topic, lines("x"), "-p", "3", code=1)


def test_oversized_record_is_refused(run: Run, topic: str, lines: Callable[..., str]) -> None:
    run("topic", "create", topic, "--config", "max.message.bytes=1000")
    said = run("produce", topic, lines("x" * 5000), "--key", "key", code=1)
    assert f"{topic}: a record of 5,003 bytes is larger than the topic's max.message.bytes, 1000. " in said
    assert f"`duramen topic alter {topic} --set max.message.bytes=N` raises it" in said
    said = run("produce", topic, lines("x" * 990), code=1)
    assert "of 990 bytes, with its headers and that of the batch around it, is larger than the topic's" in said


def test_of_each_record_it_is_told_what_became_of_it(run: Run, topic: str, lines: Callable[..., str]) -> None:
    """Those that were under way when another was refused were given up, called not written, and stored."""
    run("topic", "create", topic)
    said = run("produce", topic, lines(*"abcdefghi", "x" * 2_000_000, *"jklmnopqr"), code=1)
    told = re.search(r"raises it\. ([0-9]+) records? written, ([0-9]+) not", said)
    assert told is not None, said
    written, refused = int(told[1]), int(told[2])
    assert run("consume", topic).split() == list("abcdefghijklmnopqr")[:written]
    assert written + refused == 19 or "was not sent" in said


def test_many_records_go_where_batches_are_small(run: Run, topic: str, lines: Callable[..., str]) -> None:
    """The client library made one batch of them, which the topic refused as too large."""
    run("topic", "create", topic, "--config", "max.message.bytes=1000")
    run("produce", topic, lines(*(f"{number:0100}" for number in range(200))))
    assert [int(line) for line in run("consume", topic).split()] == list(range(200))


def test_groups(run: Run, topic: str, lines: Callable[..., str]) -> None:
    group = f"g-{topic}"
    run("topic", "create", topic)
    run("produce", topic, lines(*map(str, range(10))))
    assert run("consume", topic, "--group", group, "--count", "4").split() == ["0", "1", "2", "3"]
    (described,) = run("group", "describe", group, "--json")
    assert (described["state"], described["members"], described["lag"]) == ("Empty", [], 6)
    (place,) = described["partitions"]
    assert place.pop("member_id") is None
    assert place == {"topic": topic, "partition": 0, "committed": 4, "end": 10, "lag": 6, "member": None}
    listed = {"group": group, "type": "classic", "state": "Empty", "members": 0, "lag": 6}
    assert listed in run("group", "list", "--json")
    planned = run("group", "reset-offsets", group, "--topic", topic, "--shift-by", "-3", "--json")
    assert planned == {
        "group": group,
        "executed": False,
        "partitions": [{"topic": topic, "partition": 0, "old_offset": 4, "new_offset": 1}],
    }
    assert run("group", "describe", group, "--json")[0]["lag"] == 6
    for option, offset in (
        (["--shift-by", "-3"], 1),
        (["--to-offset", "99"], 10),
        (["--to-earliest"], 0),
        (["--to-latest"], 10),
        (["--to-datetime", "1h"], 0),
    ):
        run("group", "reset-offsets", group, "--all-topics", *option, "--execute")
        assert run("group", "describe", group, "--json")[0]["partitions"][0]["committed"] == offset
    assert run("consume", topic, "--group", group).split() == [str(n) for n in range(10)]
    assert run("consume", topic, "--group", group) == ""
    run("group", "delete", group, "--yes")
    assert "no group" in run("group", "describe", group, code=1)
    run("group", "delete", group, "--yes", code=1)


def test_group_with_a_member(run: Run, topic: str, lines: Callable[..., str], bootstrap: str) -> None:
    group = f"g-{topic}"
    run("topic", "create", topic)
    run("produce", topic, lines("first"))
    # Who runs the tests in the background of a script ignores SIGINT, and children inherit that.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        process = follower(topic, bootstrap, "--group", group)
    finally:
        signal.signal(signal.SIGINT, before)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "first\n"
        run("produce", topic, lines("second"))
        assert process.stdout.readline() == "second\n"
        (described,) = run("group", "describe", group, "--json")
        assert described["state"] == "Stable"
        assert [member["client_id"] for member in described["members"]] == ["duramen-cli"]
        assert described["partitions"][0]["member"].startswith("duramen-cli@")
        assert "1 member" in run("group", "reset-offsets", group, "--topic", topic, "--to-earliest", code=1)
        assert "members" in run("group", "delete", group, "--yes", code=1)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=30)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 130
    assert (out, told(err)) == ("", "")
    # The member said goodbye, so that the group does not wait for its session to end.
    assert run("group", "describe", group, "--json")[0]["members"] == []


def test_truncate(run: Run, topic: str, lines: Callable[..., str]) -> None:
    run("topic", "create", topic)
    run("produce", topic, lines(*map(str, range(10))))
    assert "now starts at offset 4" in run("truncate", topic, "--before", "4", "--yes")
    assert run("consume", topic).split() == [str(n) for n in range(4, 10)]
    assert "ends at offset 10" in run("truncate", topic, "--before", "11", "--yes", code=1)
    assert "--yes" in run("truncate", topic, "--before", "5", code=2)
    assert run("truncate", topic, "--before", "3", "--yes", "--json")[0]["start_offset"] == 4
    told = run("truncate", topic, "--before", "latest", "--partition", "0", "--yes", "--json")
    assert told == [{"topic": topic, "partition": 0, "start_offset": 10}]
    assert run("consume", topic) == ""


def test_which_topic_fills_the_disk(run: Run, topic: str, lines: Callable[..., str]) -> None:
    names = [f"{topic}-{letter}" for letter in "abc"]
    run("topic", "create", *names)
    for name, sizes in zip(names, [(10, 10, 10), (200_000,), (100_000, 100_000, 100_000)], strict=True):
        run("produce", name, lines(*("v" * size for size in sizes)))
    listed = [row for row in run("topic", "list", "--sort", "bytes", "--json") if row["topic"] in names]
    assert [row["topic"][-1] for row in listed] == ["c", "b", "a"]
    assert [row["bytes"] for row in listed] > [300_000, 200_000, 30]
    assert listed[0]["bytes"] < 301_000
    by_records = [row["topic"] for row in run("topic", "list", "--sort", "records", "--json")]
    assert by_records.index(names[0]) < by_records.index(names[1])
    assert [row["topic"] for row in run("topic", "list", "--json") if row["topic"] in names] == names
    (described,) = run("topic", "describe", names[2], "--json")
    assert described["bytes"] == listed[0]["bytes"] == sum(part["bytes"] for part in described["partitions"])
    assert "293." in run("topic", "describe", names[2]).splitlines()[-1]
    (line,) = [line for line in run("topic", "list").splitlines() if line.startswith(names[1])]
    assert re.search(r" 195\.\d KiB$", line)


def test_status(run: Run, topic: str, lines: Callable[..., str], bootstrap: str) -> None:
    run("topic", "create", topic)
    run("produce", topic, lines("a", "b"))
    run("consume", topic, "--group", topic, "--count", "1")
    status = run("status", "--json", "--interval", "0.2")
    (told,) = [each for each in status["topics"] if each["topic"] == topic]
    size = told["bytes"]
    assert size > 0
    assert told == {
        "topic": topic,
        "partitions": 1,
        "records": 2,
        "offline": 0,
        "under_replicated": 0,
        "under_min_isr": 0,
        "bytes": size,
        "lag": 1,
        "records_per_second": 0.0,
        "offsets": [
            {
                "partition": 0,
                "leader": 1,
                "start_offset": 0,
                "end_offset": 2,
                "bytes": size,
                "replicas": [1],
                "isr": [1],
            }
        ],
    }
    (group,) = [each for each in status["groups"] if each["group"] == topic]
    assert group["offsets"] == [
        {"topic": topic, "partition": 0, "committed": 1, "end": 2, "lag": 1, "member": None, "member_id": None},
    ]
    assert (status["groups_trouble"], status["bytes_trouble"]) == (None, None)
    (node,) = status["nodes"]
    assert (node["id"], f"{node['host']}:{node['port']}") == (1, bootstrap)
    assert status["cluster_id"]
    text = run("status", "--once", "--interval", "0.2")
    assert topic in text
    assert "cluster " in text


def test_only_what_the_node_calls_internal_is_hidden(run: Run, topic: str, lines: Callable[..., str]) -> None:
    """Names that begin with two underscores were hidden: Debezium's heartbeats, for one."""
    names = {f"__debezium-heartbeat.{topic}", f"_schemas-{topic}", topic}
    run("topic", "create", *names)
    run("produce", topic, lines("a"))
    run("consume", topic, "--group", topic)  # makes __consumer_offsets

    def listed(*more: str) -> set[str]:
        return {found["topic"] for found in run("topic", "list", "--json", *more)}

    assert names <= listed() <= listed("--internal")
    assert "__consumer_offsets" in listed("--internal") - listed()
    told = {found["topic"] for found in run("status", "--json", "--interval", "0.2")["topics"]}
    assert names <= told
    assert "__consumer_offsets" not in told


@pytest.mark.skipif("DURAMEN_TEST_BOOTSTRAP" in os.environ, reason="a topic of Duramen's own")
def test_a_topic_that_no_client_reads_hides_no_other(run: Run, topic: str) -> None:
    """One refused look-up ended `topic list --internal` on every node that has ever had a sink."""
    staging = "__duramen_staging"
    run("topic", "create", topic)
    run("topic", "create", staging, "--if-not-exists")
    listed = {found["topic"]: found for found in run("topic", "list", "--internal", "--json")}
    assert (listed[topic]["records"], listed[staging]["records"]) == (0, None)
    assert (listed[staging]["offline"], listed[staging]["bytes"] is not None) == (0, True)
    assert staging in run("topic", "list", "--internal")
    (described,) = run("topic", "describe", staging, "--json")
    assert {(part["offline"], part["end_offset"]) for part in described["partitions"]} == {(False, None)}
    assert "-" in run("topic", "describe", staging).splitlines()[-1].split()
    for command in ("consume", "truncate"):
        more = ("--before", "1", "--yes") if command == "truncate" else ()
        assert "no client reads it" in run(command, staging, *more, code=1)


@pytest.mark.parametrize(
    ("content", "options", "expected"),
    [
        ("a\nb\n", [], [(None, "a"), (None, "b")]),
        ("k:v\n", ["-K", ":"], [("k", "v")]),
        ('{"id":"k"}\n', ["--key-field", "id"], [("k", '{"id":"k"}')]),
        ('{"key":"k","value":"v"}\n', ["--format", "json"], [("k", "v")]),
        ("null\n", ["--null", "null"], [(None, None)]),
        ("", [], []),
        ("a", ["--format", "file"], [(None, "\ufeffa")]),
    ],
)
def test_a_byte_order_mark_is_in_no_record_of_a_text(
    run: Run, topic: str, tmp_path: Path, content: str, options: list[str], expected: list[Any]
) -> None:
    """Windows' editors begin files with one; a file that is a record is kept as it is."""
    path = tmp_path / "text"
    path.write_text(content, encoding="utf-8-sig")
    run("topic", "create", topic)
    run("produce", topic, str(path), str(path), *options)  # each file begins with its own
    found = [json.loads(line) for line in run("consume", topic, "--json").splitlines()]
    assert [(record["key"], record["value"]) for record in found] == expected * 2


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be", "utf-32-le", "utf-32-be"])
def test_a_text_that_is_not_in_utf_8_is_refused(run: Run, topic: str, tmp_path: Path, encoding: str) -> None:
    """PowerShell's `>` writes UTF-16, which was cut at the byte of a line feed into broken records."""
    path = tmp_path / "text"
    path.write_text("\ufeffgrün\n\u0a0a\n", encoding=encoding)
    said = run("produce", topic, str(path), code=1)
    assert (f"{path}: it is in UTF-16 or UTF-32" in said, "0 records written" in said) == (True, True), said
    run("produce", topic, str(path), "--format", "file")  # as it is
    (found,) = run("consume", topic, "--json").splitlines()
    assert base64.b64decode(json.loads(found)["value_base64"]) == path.read_bytes()


def test_what_a_policy_forbids_is_said_in_the_words_of_the_node(
    run: Run, topic: str, lines: Callable[..., str]
) -> None:
    """All were told of a topic that is only compacted, which is what DeleteRecords, without words, means by it."""
    said = run("topic", "create", topic, "--partitions", "100000", code=1)
    assert "truncated" not in said
    assert "partitions" in said
    run("topic", "create", topic, "--config", "cleanup.policy=compact")
    run("produce", topic, lines("a"), "--key", "k")
    assert "only compacted cannot be truncated" in run("truncate", topic, "--before", "1", "--yes", code=1)


def test_no_topic_is_made_in_silence(
    run: Run, topic: str, lines: Callable[..., str], capsys: pytest.CaptureFixture[str]
) -> None:
    """A misspelt name made one, also where no record came."""

    def exists() -> bool:
        return any(found["topic"] == topic for found in run("topic", "list", "--json"))

    assert main(["produce", topic, lines()]) == 0
    assert f"there is no topic {topic}" in capsys.readouterr().err
    assert "no such topic; `duramen topic create" in run("produce", topic, lines("a"), "--no-create", code=1)
    assert "line 1" in run("produce", topic, lines("no JSON"), "--format", "json", code=1)
    assert not exists()
    assert main(["produce", topic, lines("a")]) == 0
    assert f"topic {topic} was made with 1 partition\n" in capsys.readouterr().err
    assert main(["produce", topic, lines("b"), "--no-create"]) == 0
    assert "was made" not in capsys.readouterr().err
    assert run("consume", topic).split() == ["a", "b"]


def test_an_offset_outside_of_the_log_is_told(
    run: Run, topic: str, lines: Callable[..., str], capsys: pytest.CaptureFixture[str]
) -> None:
    """The nearest end was taken in silence."""
    run("topic", "create", topic, "--partitions", "6")
    run("produce", topic, lines("a", "b", "c"), "-p", "0")
    reset = ["group", "reset-offsets", topic, "--topic", f"{topic}:0", "--execute"]
    assert main([*reset, "--to-offset", "99"]) == 0
    assert f"{topic}-0: offset 99 lies outside of the log, 0 to 3; 3 is taken" in capsys.readouterr().err
    assert main([*reset, "--shift-by", "-7"]) == 0
    assert "offset -4 lies outside of the log, 0 to 3; 0 is taken" in capsys.readouterr().err
    assert main([*reset, "--to-offset", "2"]) == 0
    assert "lies outside" not in capsys.readouterr().err
    assert main(["consume", topic, "--from", "1"]) == 0
    said = capsys.readouterr()
    assert said.out.split() == ["b", "c"]
    assert said.err.count("lies outside of the log, 0 to 0; 0 is taken") == 4
    assert "so it is in 1 partition more" in said.err


@pytest.mark.parametrize(
    "command", [["consume", "a/b"], ["consume", "a/b", "--group", "g"], ["topic", "describe", "*"]]
)
def test_a_name_that_no_topic_has_is_refused_in_a_sentence(run: Run, command: list[str]) -> None:
    said = run(*command, code=1)
    assert "INVALID_TOPIC" not in said
    assert "no topic can have this name" in said or "there is no such topic" in said


def test_a_pipeline_of_processes(bootstrap: str, topic: str) -> None:
    environment = {**os.environ, "DURAMEN_BOOTSTRAP": bootstrap}
    produced = subprocess.run(
        [*RUN, "produce", topic], input="hello\n", env=environment, capture_output=True, text=True, timeout=60
    )
    assert produced.returncode == 0, produced.stderr
    assert "\nwrote 1 record " in produced.stderr
    consumed = subprocess.run([*RUN, "consume", topic], env=environment, capture_output=True, text=True, timeout=60)
    assert (consumed.stdout, consumed.stderr, consumed.returncode) == ("hello\n", "", 0)


def test_following_ends_with_the_reader(bootstrap: str, topic: str, run: Run, lines: Callable[..., str]) -> None:
    run("topic", "create", topic)
    run("produce", topic, lines("one"))
    process = follower(topic, bootstrap)
    try:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == "one\n"
        process.stdout.close()
        deadline = time.monotonic() + 100
        while process.poll() is None and time.monotonic() < deadline:
            run("produce", topic, lines("more"))
        assert process.returncode == 0
        assert process.stderr.read() == ""
        process.stderr.close()
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize("more", [[], ["--group", "late"]], ids=["alone", "group"])
def test_what_was_gone_before_it_was_read_is_told(
    bootstrap: str, topic: str, run: Run, lines: Callable[..., str], more: list[str]
) -> None:
    """A follower from the latest record on did not go back to it: what was there of the others went by unread."""
    run("topic", "create", topic)
    process = subprocess.Popen(
        [*RUN, "consume", topic, "--from", "latest", "--follow", "--bootstrap", bootstrap, *more],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        bufsize=0,
    )
    patience = threading.Timer(100, process.kill)
    patience.start()
    try:
        assert process.stdout is not None
        assert process.stderr is not None
        written = 0
        while not select.select([process.stdout], [], [], 0.2)[0]:
            run("produce", topic, lines("seen"))
            written += 1
        run("produce", topic, lines("all seen"))
        written += 1
        while process.stdout.readline() == b"seen\n":
            pass  # the last one is "all seen"
        process.send_signal(signal.SIGSTOP)
        time.sleep(1)  # the node answers what it was asked for before
        run("produce", topic, lines("gone", "gone", "there", "there"))
        run("truncate", topic, "--before", str(written + 2), "--yes")
        process.send_signal(signal.SIGCONT)
        assert [process.stdout.readline() for _ in range(2)] == [b"there\n", b"there\n"]
        told = (
            f"{topic}-0: offsets {written} to {written + 1} were gone before they were read; going on at {written + 2}"
        )
        assert process.stderr.readline().decode() == told + "\n"
    finally:
        patience.cancel()
        process.kill()
        process.communicate()


def test_a_bad_line_says_what_was_written_before_it(run: Run, topic: str, lines: Callable[..., str]) -> None:
    run("topic", "create", topic)
    said = run("produce", topic, lines("a:1", "b:2", "none"), "-K", ":", code=1)
    assert "line 3: there is no key separator" in said
    assert "2 records written." in said


def test_input_without_a_line_end_is_bounded(run: Run, topic: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("duramen.cli.commands.produce.MAX_RECORD_BYTES", 1024 * 1024)
    run("topic", "create", topic)
    assert "line 1: it is longer than 1.0 MiB" in run("produce", topic, "/dev/zero", code=1)
    assert "/dev/zero: it is longer than 1.0 MiB" in run("produce", topic, "/dev/zero", "--format", "file", code=1)


def test_interrupted_writing_says_how_far_it_came(bootstrap: str, topic: str, run: Run, tmp_path: Path) -> None:
    run("topic", "create", topic)
    endless = tmp_path / "lines"
    endless.write_bytes(b"x\n" * 4_000_000)
    process = subprocess.Popen(
        [*RUN, "produce", topic, str(endless), "--bootstrap", bootstrap], stderr=subprocess.PIPE, text=True
    )
    try:
        deadline = time.monotonic() + 100
        while not any(row["topic"] == topic and row["records"] for row in run("topic", "list", "--json")):
            assert time.monotonic() < deadline
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=60)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 130, said
    written = re.fullmatch(r"\ninterrupted: ([0-9,]+) records written\n\n", said)
    assert written is not None, said
    assert len(run("consume", topic).split()) == int(written[1].replace(",", ""))


def test_what_was_done_beside_a_refusal_is_told(
    run: Run, topic: str, bootstrap: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for words in (
        ["topic", "create", topic, "bad name", f"{topic}-2"],
        ["topic", "delete", topic, "none", f"{topic}-2"],
    ):
        assert main([*words, "--bootstrap", bootstrap, *(["-y"] if "delete" in words else [])]) == 1
        *done, refused = capsys.readouterr().err.splitlines()
        assert done == [f"{words[1]}d {topic}", f"{words[1]}d {topic}-2"]
        assert refused.startswith(f"duramen: {words[3]}: ")
    assert run("topic", "create", topic) == ""
    assert run("topic", "delete", topic, topic, "--yes") == "", "named twice, deleted once"


def test_options_that_are_given_again_add_to_each_other(run: Run, topic: str, lines: Callable[..., str]) -> None:
    run("topic", "create", topic, "--config", "cleanup.policy=delete")
    run("produce", topic, lines("v"), "-H", "h=1", "-H", "h=2")
    assert json.loads(run("consume", topic, "--json"))["headers"] == [["h", "1"], ["h", "2"]]
    policies = ("--append", "cleanup.policy=compact", "--append", "cleanup.policy=delete")
    run("config", "alter", "--topic", topic, *policies)
    (entry,) = run("config", "describe", "--topic", topic, "--key", "cleanup.policy", "--json")
    assert set(entry["value"].split(",")) == {"compact", "delete"}


def test_ctrl_c_ends_a_follower_whose_node_is_gone(tmp_path: Path, lines: Callable[..., str]) -> None:
    """It arrived in the client library's call of a logger, where it was lost: a SystemError came of it."""
    node = Served(tmp_path)
    node.start()
    processes = []
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        assert main(["produce", "t", lines("first"), "--bootstrap", node.bootstrap]) == 0
        follow = [*RUN, "consume", "t", "--follow", "--bootstrap", node.bootstrap]
        for _ in range(3):
            processes.append(subprocess.Popen(follow, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))
        for process in processes:
            assert process.stdout is not None
            assert process.stdout.readline() == "first\n"
        node.kill()
        time.sleep(3)  # by now the library tries to connect again and again, and says so
        for process in processes:
            process.send_signal(signal.SIGINT)
            assert process.communicate(timeout=60)[1].strip() == ""
            assert process.returncode == 130
    finally:
        signal.signal(signal.SIGINT, before)
        node.kill()
        for process in processes:
            process.kill()
            process.wait()


def test_a_follower_says_that_its_topic_was_deleted_and_reads_the_next_one_of_its_name(
    run: Run, topic: str, lines: Callable[..., str], bootstrap: str
) -> None:
    run("topic", "create", topic)
    run("produce", topic, lines("old"))
    process = follower(topic, bootstrap)
    try:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == "old\n"
        run("topic", "delete", topic, "--yes")
        assert process.stderr.readline() == f"topic {topic} was deleted; waiting for a new one of its name\n"
        run("topic", "create", topic)
        run("produce", topic, lines("new 0", "new 1"))
        assert [process.stdout.readline() for _ in range(2)] == ["new 0\n", "new 1\n"]
    finally:
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
    assert err.strip() == f"topic {topic} was deleted and made anew; it is read from its first record"
    assert process.returncode == 130


@pytest.mark.parametrize("count", [3, 12])
def test_a_follower_reads_a_topic_that_is_made_anew_from_its_first_record(
    run: Run, topic: str, lines: Callable[..., str], bootstrap: str, count: int
) -> None:
    """Whether the new one has the offset at which the old one was read, or does not reach it yet."""
    run("topic", "create", topic)
    run("produce", topic, lines(*(f"old {number}" for number in range(8))))
    process = follower(topic, bootstrap)
    try:
        assert process.stdout is not None
        assert [process.stdout.readline() for _ in range(8)] == [f"old {number}\n" for number in range(8)]
        run("topic", "delete", topic, "--yes")
        run("topic", "create", topic, "--partitions", "2")
        for partition in ("0", "1"):
            run("produce", topic, lines(*(f"new {number}" for number in range(count))), "--partition", partition)
        found = sorted(process.stdout.readline() for _ in range(2 * count))
        assert found == sorted(2 * [f"new {number}\n" for number in range(count)])
    finally:
        process.terminate()
        out, err = process.communicate(timeout=60)
    assert out == ""
    assert err.strip() == f"topic {topic} was deleted and made anew; it is read from its first record"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_member_that_is_told_to_end_leaves_its_group(
    run: Run, topic: str, lines: Callable[..., str], bootstrap: str, number: signal.Signals
) -> None:
    """Supervisors send SIGTERM, terminals that go away SIGHUP: the others waited for the session of 45 s to end."""
    run("topic", "create", topic)
    run("produce", topic, lines("v"))
    process = follower(topic, bootstrap, "--group", topic)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "v\n"
        deadline = time.monotonic() + 60
        while not any(row["group"] == topic and row["lag"] == 0 for row in run("group", "list", "--json")):
            assert time.monotonic() < deadline
        process.send_signal(number)
        _, err = process.communicate(timeout=60)
    finally:
        process.kill()
        process.wait()
    assert (process.returncode, told(err)) == (128 + number, "")
    (group,) = [row for row in run("group", "list", "--json") if row["group"] == topic]
    assert (group["members"], group["lag"]) == (0, 0)


def test_what_a_slow_reader_was_given_moves_the_group_on_and_nothing_else(
    run: Run, topic: str, lines: Callable[..., str], bootstrap: str
) -> None:
    """It reads for longer than `max.poll.interval.ms`, and is told to end while its output waits."""
    run("topic", "create", topic)
    run("produce", topic, lines(*(f"{number:03} {'v' * 2000}" for number in range(100))))
    short = ["-X", "max.poll.interval.ms=1000", "-X", "session.timeout.ms=1000", "-X", "heartbeat.interval.ms=200"]
    process = follower(topic, bootstrap, "--group", topic, *short)
    try:
        assert process.stdout is not None
        read = [process.stdout.readline()]
        began = time.monotonic()
        while time.monotonic() < began + 2.5:
            select.select([], [], [], 0.1)
            read.append(process.stdout.readline())
        (group,) = run("group", "describe", topic, "--json")
        assert len(group["members"]) == 1
        assert group["partitions"][0]["committed"] > len(read)
        process.send_signal(signal.SIGTERM)
        code = process.wait(60)
        read_then = len(read)
        read += process.stdout.readlines()  # `communicate` knows nothing of what was read ahead
        err = process.communicate()[1]
    finally:
        process.kill()
        process.wait()
    assert (code, told(err)) == (128 + signal.SIGTERM, "")
    given = len(read)
    assert read_then < given < 100
    assert run("group", "describe", topic, "--json")[0]["partitions"][0]["committed"] == given
    left = run("consume", topic, "--group", topic).splitlines()
    assert [line[:3] for line in left] == [f"{number:03}" for number in range(given, 100)]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_who_is_told_to_end_writes_what_it_has_read_and_says_so(
    run: Run, topic: str, bootstrap: str, number: signal.Signals
) -> None:
    run("topic", "create", topic)
    process = subprocess.Popen(
        [*RUN, "produce", topic, "--bootstrap", bootstrap], stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert process.stdin is not None
        process.stdin.write("a\nb\n")
        process.stdin.flush()
        deadline = time.monotonic() + 60
        while not any(row["topic"] == topic and row["records"] for row in run("topic", "list", "--json")):
            assert time.monotonic() < deadline
        process.send_signal(number)
        _, said = process.communicate(timeout=60)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 128 + number, said
    assert said.strip() == "interrupted: 2 records written"
    assert run("consume", topic) == "a\nb\n"
