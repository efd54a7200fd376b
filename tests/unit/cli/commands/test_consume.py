"""Where `duramen consume` begins and ends, and of which topics: against a node."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import pytest

from duramen.cli.main import main

Run = Callable[..., Any]


def test_consume_reads_until_an_offset_or_a_time(
    run: Run, topic: str, lines: Callable[..., str], capsys: pytest.CaptureFixture[str]
) -> None:
    run("topic", "create", topic, "--partitions", "2")
    timed = [json.dumps({"value": str(n), "timestamp": 1_700_000_000_000 + n, "partition": n % 2}) for n in range(10)]
    run("produce", topic, lines(*timed), "--format", "json", "--keep-partitions")

    def until(*arguments: str) -> list[int]:
        return sorted(int(value) for value in run("consume", topic, *arguments).split())

    assert until("--until", "2") == [0, 1, 2, 3]
    assert until("--until", "2", "-p", "1") == [1, 3]
    assert until("--from", "1", "--until", "2") == [2, 3]
    assert until("--from", "2", "--until", "2") == []
    assert until("--until", "-2") == [0, 1, 2, 3, 4, 5]
    assert until("--until", "@1700000000005") == [0, 1, 2, 3, 4]
    assert until("--from", "@1700000000003", "--until", "@1700000000008") == [3, 4, 5, 6, 7]
    assert until("--until", "@1800000000000") == list(range(10))
    assert until("--until", "latest", "--follow") == list(range(10))
    assert until("--until", "4", "--follow", "--isolation", "read_uncommitted") == list(range(8))
    assert until("--until", "@1600000000000", "--follow") == []
    capsys.readouterr()
    assert main(["consume", topic, "--until", "99"]) == 0
    assert f"{topic}-0: offset 99 lies outside of the log, 0 to 5; 5 is taken" in capsys.readouterr().err


def test_a_follower_waits_for_what_it_reads_until(
    run: Run, topic: str, lines: Callable[..., str], bootstrap: str
) -> None:
    run("topic", "create", topic)
    run("produce", topic, lines("a"))
    command = ["consume", topic, "--follow", "--until", "3", "--timeout", "5", "--bootstrap", bootstrap]
    with subprocess.Popen(
        [sys.executable, "-m", "duramen.cli.main", *command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "a\n"
            time.sleep(5.5)  # longer than a reader that does not follow would wait
            run("produce", topic, lines("b", "c", "d"))
            assert process.communicate(timeout=30) == ("b\nc\n", "")
        finally:
            process.kill()
    assert process.returncode == 0


def test_consume_reads_the_newest_records_of_all_partitions(run: Run, topic: str, lines: Callable[..., str]) -> None:
    run("topic", "create", topic, "--partitions", "4")  # the last one stays empty
    timed = [json.dumps({"value": str(n), "timestamp": 1_700_000_000_000 + n, "partition": n % 3}) for n in range(20)]
    run("produce", topic, lines(*timed), "--format", "json", "--keep-partitions")
    assert run("consume", topic, "--last", "7").split() == [str(n) for n in range(13, 20)]
    assert run("consume", topic, "--last", "99").split() == [str(n) for n in range(20)]
    assert run("consume", topic, "--last", "2", "-p", "0").split() == ["15", "18"]
    assert run("consume", topic, "--last", "2", "-p", "3") == ""


def test_consume_reads_several_topics_and_patterns(run: Run, topic: str, lines: Callable[..., str]) -> None:
    for name in "abc":
        run("produce", f"{topic}.{name}", lines(name))
    run("produce", topic, lines("none of them"))
    assert sorted(run("consume", f"{topic}.a", f"{topic}.b", f"{topic}.a").split()) == ["a", "b"]
    assert sorted(run("consume", f"{topic}.*", f"{topic}.c").split()) == ["a", "b", "c"]
    assert sorted(run("consume", f"{topic}.[ab]", "--group", topic).split()) == ["a", "b"]
    assert run("consume", f"{topic}.*", "--group", topic).split() == ["c"]
    assert run("consume", f"{topic}.?", "--last", "2").split() == ["b", "c"]
    full = run("consume", f"{topic}.?", "--format", "full").splitlines()
    assert sorted(line.split(" ")[0] for line in full) == [f"{topic}.{name}-0:0" for name in "abc"]
    assert run("consume", topic, "--format", "full").startswith("0:0 ")
    assert "no topic matches" in run("consume", f"{topic}-*", code=1)
    assert "there is no such topic" in run("consume", f"{topic}.a", f"{topic}.x", code=1)
    run("consume", f"{topic}.a", "--group", topic)  # there is __consumer_offsets
    assert "no topic matches" in run("consume", "__consumer_*", code=1)


def test_a_time_of_which_there_is_no_record_is_told(
    run: Run, topic: str, lines: Callable[..., str], capsys: pytest.CaptureFixture[str]
) -> None:
    """It read nothing, in silence. Where one partition has a record of that time it is only quiet in the others."""
    run("topic", "create", topic, "--partitions", "2")
    run("produce", topic, lines("a"), "--partition", "0")
    assert main(["consume", topic, "--from", "@9000000000000"]) == 0
    assert capsys.readouterr() == ("", "no record is of that time or later; the end is taken\n")
    assert main(["consume", topic, "--from", "1h"]) == 0
    assert capsys.readouterr() == ("a\n", "")


def test_a_closed_stdout_takes_no_records_of_a_group(
    run: Run, bootstrap: str, topic: str, lines: Callable[..., str]
) -> None:
    run("produce", topic, lines("a", "b"))
    consume = f'"{sys.executable}" -m duramen consume {topic} -b {bootstrap} --group {topic}-closed >&-'
    done = subprocess.run(["/bin/sh", "-c", consume], capture_output=True, text=True, timeout=60)
    assert (done.returncode, "stdout is closed" in done.stderr) == (1, True), done.stderr
    (described,) = run("group", "describe", f"{topic}-closed", "--json")
    assert [partition["lag"] for partition in described["partitions"]] == [2]
