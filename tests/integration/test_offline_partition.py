"""A partition whose file was damaged while the node was stopped: each command says so at once; the rest is served."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import urllib.request
from pathlib import Path

from confluent_kafka import Consumer, KafkaError
from confluent_kafka import TopicPartition as Partition
from tests.worlds.served_node import DURAMEN, Served, free_port, only_duramen


@only_duramen
def test_every_command_says_so(tmp_path: Path) -> None:
    port = free_port()
    node = Served(tmp_path, {"metrics.listener": f"127.0.0.1:{port}"})

    def run(*words: str, given: str = "") -> tuple[int, str, str]:
        environment = {**os.environ, "DURAMEN_BOOTSTRAP": node.bootstrap}
        done = subprocess.run(
            [DURAMEN, *words], env=environment, input=given, capture_output=True, text=True, timeout=20, check=False
        )
        return done.returncode, done.stdout, done.stderr

    node.start()
    try:
        for topic in ("whole", "short"):
            assert run("topic", "create", topic, "--partitions", "1")[0] == 0
            assert run("produce", topic, given="one\ntwo\n")[0] == 0
        assert node.stop() == 0, node.log()
        os.truncate(node.data / "short-0" / "00000000000000000000.log", 70)
        node.start()

        code, out, _ = run("status", "--json")
        assert code == 0
        assert {t["topic"]: (t["records"], t["offline"]) for t in json.loads(out)["topics"]} == {
            "whole": (2, 0),
            "short": (0, 1),
        }
        ((directory,),) = (each["directories"] for each in json.loads(out)["damage"])
        assert [(each["topic"], each["partition"]) for each in directory["offline"]] == [("short", 0)]
        assert (directory["path"], directory["failed"], directory["damage"]) == (str(node.data), None, [])
        code, out, _ = run("status")
        assert code == 0
        assert f"node 1, {node.data}: not scrubbed yet; 1 partition offline\n  offline: short-0: " in out
        code, out, _ = run("topic", "describe", "short", "--json")
        assert (code, json.loads(out)[0]["partitions"][0]["offline"]) == (0, True)
        code, out, err = run("topic", "list")
        assert (code, "1 partition offline" in err) == (0, True)
        for words in (("consume", "short"), ("consume", "short", "--from", "0"), ("produce", "short")):
            code, out, err = run(*words, given="three\n")
            assert (code, out) == (1, ""), words
            assert "short-0: it is offline" in err
            assert err.count("\n") == 1
        assert run("consume", "whole")[:2] == (0, "one\ntwo\n")
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
            assert f'duramen_offline_partitions{{directory="{node.data}"}} 1.0' in answer.read().decode()
        assert run("topic", "delete", "short", "--yes")[0] == 0
        assert node.stop() == 0, node.log()
    finally:
        node.kill()


@only_duramen
@only_duramen
def test_behind_a_repair_readers_get_to_the_end_that_was_lost(tmp_path: Path) -> None:
    """No record tells them to go on: they waited in front of what nobody has any more."""
    node = Served(tmp_path, {})

    def run(*words: str, given: str = "") -> tuple[int, str]:
        environment = {**os.environ, "DURAMEN_BOOTSTRAP": node.bootstrap}
        done = subprocess.run(
            [DURAMEN, *words], env=environment, input=given, capture_output=True, text=True, timeout=20, check=False
        )
        return done.returncode, done.stdout

    node.start()
    try:
        for topic in ("short", "gone"):
            assert run("topic", "create", topic, "--partitions", "1")[0] == 0
            for line in ("one\n", "two\n"):
                assert run("produce", topic, given=line)[0] == 0
        assert node.stop() == 0, node.log()
        log = node.data / "short-0" / "00000000000000000000.log"
        os.truncate(log, log.stat().st_size - 3)
        shutil.rmtree(node.data / "gone-0")
        assert run("log", "verify", str(node.data))[0] == 1
        assert run("log", "repair", str(node.data), "--yes")[0] == 1
        node.start()
        assert run("consume", "short") == (0, "one\n")
        assert run("consume", "gone") == (0, "")
        consumer = Consumer(
            {"bootstrap.servers": node.bootstrap, "group.id": "g", "enable.partition.eof": True, "client.id": "t"}
        )
        consumer.assign([Partition("short", 0, 0)])
        polled = [consumer.poll(10) for _ in range(2)]
        assert [(each.error() and each.error().code(), each.offset()) for each in polled if each is not None] == [
            (None, 0),
            (KafkaError._PARTITION_EOF, 2),
        ]
        consumer.close()
        for topic in ("short", "gone"):
            assert run("produce", topic, given="three\n")[0] == 0
            assert run("consume", topic, "--from", "2") == (0, "three\n")
        assert node.stop() == 0, node.log()
        assert run("log", "verify", str(node.data))[0] == 0
    finally:
        node.kill()


def test_damage_in_the_log_of_one_group_leaves_the_others(tmp_path: Path) -> None:
    """That of `__consumer_offsets` was answered "loading" for ever, to whoever listed groups and to `status`."""
    node = Served(tmp_path, {"offsets.topic.num.partitions": "4"})

    def run(*words: str, given: str = "") -> tuple[int, str, str]:
        environment = {**os.environ, "DURAMEN_BOOTSTRAP": node.bootstrap}
        done = subprocess.run(
            [DURAMEN, *words], env=environment, input=given, capture_output=True, text=True, timeout=30, check=False
        )
        return done.returncode, done.stdout, done.stderr

    node.start()
    try:
        assert run("produce", "t", given="one\ntwo\n")[0] == 0
        for group in ("g", "h"):  # in partitions 3 and 0
            assert run("consume", "t", "--group", group)[:2] == (0, "one\ntwo\n")
        assert node.stop() == 0, node.log()
        log = node.data / "__consumer_offsets-3" / "00000000000000000000.log"
        content = bytearray(log.read_bytes())
        content[70] ^= 4
        log.write_bytes(content)
        node.start()
        code, out, err = run("status", "--json")
        assert (code, err) == (0, "")
        status = json.loads(out)
        assert [group["group"] for group in status["groups"]] == ["h"]
        assert status["groups_trouble"] is None
        ((directory,),) = (each["directories"] for each in status["damage"])
        assert [(each["topic"], each["partition"]) for each in directory["damage"]] == [("__consumer_offsets", 3)]
        assert [each["group"] for each in json.loads(run("group", "list", "--json")[1])] == ["h"]
        code, out, err = run("group", "describe", "g")
        assert (code, out, err.count("\n"), "`duramen status`" in err) == (1, "", 1, True), err
        assert run("group", "describe", "h")[0] == 0
        assert node.log().count("coordinator-load-failed") == 1
        assert node.stop() == 0, node.log()
    finally:
        node.kill()
