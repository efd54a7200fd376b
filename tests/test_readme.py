"""Runs the README's tour as a reader would: its Python blocks and its console blocks, in order, against a real node."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from benchmarks import chart
from tests.worlds.served_node import Served

README = Path(__file__).resolve().parent.parent / "README.md"
BIN = Path(sys.executable).parent
ADDRESS = "127.0.0.1:9092"


class Block(NamedTuple):
    """A fenced block of the README: its language, its text and the line it starts on."""

    language: str
    text: str
    line: int


def blocks() -> list[Block]:
    text = README.read_text(encoding="utf-8")
    found = re.finditer(r"^```(\w+)\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL)
    return [Block(m[1], m[2], text.count("\n", 0, m.start()) + 1) for m in found]


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


def run(words: list[str], address: str, folder: Path, where: str) -> str:
    """What a person sees of it: stdout and stderr."""
    environment = {**os.environ, "DURAMEN_BOOTSTRAP": address, "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}"}
    ran = subprocess.run(
        words,
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=60,
        check=False,
    )
    assert ran.returncode == 0, f"{where}: {words[-1]}\n{ran.stdout}"
    return ran.stdout


def run_console(block: Block, address: str, folder: Path) -> None:
    """Each `$` line is run; the lines below it are what it prints, all of them."""
    for part in re.split(r"^\$ ", block.text, flags=re.MULTILINE)[1:]:
        command, _, shown = part.partition("\n")
        assert run(["sh", "-c", command], address, folder, f"README.md:{block.line}") == shown, command


def test_the_tour(address: str, tmp_path: Path) -> None:
    tour = [block for block in blocks() if block.language in {"python", "console"}]
    assert {block.language for block in tour} == {"python", "console"}
    printed = []
    for block in tour:
        if block.language == "console":
            run_console(block, address, tmp_path)
        else:
            script = block.text.replace(ADDRESS, address)
            printed.append(run([sys.executable, "-c", script], address, tmp_path, f"README.md:{block.line}"))
    assert printed == ["1000 orders are on disk\n", "7 customers billed\n", "0 b'k' b'it happened'\n"]


def test_the_shell_blocks_name_things_that_exist() -> None:
    """Targets of make and commands of duramen in the blocks that are not run here."""
    makefile = (README.parent / "Makefile").read_text()
    shell = "".join(block.text for block in blocks() if block.language == "sh")
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
