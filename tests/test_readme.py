"""Runs the README's tour, and those of two pages of docs, as a reader would, against a real node."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from benchmarks import chart
from tests.worlds.printed_page import ADDRESS, BIN, blocks, run, run_tour
from tests.worlds.served_node import Served

README = Path(__file__).resolve().parent.parent / "README.md"


@pytest.fixture
def address(tmp_path: Path) -> Iterator[str]:
    """A node as the README starts it, but for the port, so that it may run beside others."""
    node = Served(tmp_path)
    node.start()
    try:
        yield node.bootstrap
        assert node.stop() == 0, node.log()
    finally:
        node.kill()


def test_the_tour(address: str, tmp_path: Path) -> None:
    printed = run_tour(README, address, tmp_path)
    assert printed == ["1000 orders are on disk\n", "7 customers billed\n", "0 b'k' b'it happened'\n"]


def test_the_tour_of_transactions(address: str, tmp_path: Path) -> None:
    assert run_tour(README.parent / "docs" / "transactions.md", address, tmp_path) == ["", "", ""]


def test_the_tour_of_groups(tmp_path: Path) -> None:
    """The same node, but that members beat more often: nobody waits five seconds for each of their heartbeats."""
    intervals = ("min.heartbeat.interval", "heartbeat.interval", "assignment.interval")
    node = Served(tmp_path, {f"group.consumer.{interval}.ms": "200" for interval in intervals})
    node.start()
    try:
        printed = run_tour(README.parent / "docs" / "groups.md", node.bootstrap, tmp_path)
        assert node.stop() == 0, node.log()
    finally:
        node.kill()
    assert printed == [
        "",
        "400 readings archived\n",
        "[4]\n[2, 2]\n[4]\n",
        "",
        "['sensors.north', 'sensors.south']\n",
        "-1001\n40\n",
        "archive has two members of the consumer protocol\n",
    ]


def test_the_shell_blocks_name_things_that_exist() -> None:
    """Targets of make and commands of duramen in the blocks that are not run here."""
    makefile = (README.parent / "Makefile").read_text()
    shell = "".join(block.text for block in blocks(README) if block.language == "sh")
    targets = re.findall(r"^make ([\w-]+)", shell, flags=re.MULTILINE)
    assert targets
    for target in targets:
        assert re.search(rf"^{target}:", makefile, flags=re.MULTILINE), target
    for command in re.findall(r"duramen ((?:log )?[a-z]+)", shell):
        run([str(BIN / "duramen"), *command.split(), "--help"], ADDRESS, README.parent, command)


def test_the_picture_shows_the_newest_run_of_the_benchmark() -> None:
    """`make bench-picture` draws it; a figure that is worse than Kafka's stands there as such."""
    result = json.loads(chart.newest().read_text(encoding="utf-8"))
    assert chart.PICTURE.read_text(encoding="utf-8") == chart.picture(result)
    assert chart.PICTURE.relative_to(README.parent).as_posix() in README.read_text(encoding="utf-8")
    figures = [one for _, rows in chart.groups(result) for one in rows]
    slower = [
        row
        for one in result["scenarios"]
        for row in one["figures"]
        if row["figure"] == "records/s" and row["ratio"] < 1
    ]
    assert sum(one.times < 1 for one in figures) >= len(slower)
    assert chart.picture(result).count("<rect") == len(figures) + 1
