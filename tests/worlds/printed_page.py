"""Pages whose examples are run as a reader would run them: Python and console blocks, in order, against a real node."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

BIN = Path(sys.executable).parent
ADDRESS = "127.0.0.1:9092"
"""Of the node in the examples; what is run gets another one in its place."""


class Block(NamedTuple):
    """A fenced block of a page: its language, its text and the line it starts on."""

    language: str
    text: str
    line: int


def blocks(page: Path) -> list[Block]:
    """Its fenced blocks in order."""
    text = page.read_text(encoding="utf-8")
    found = re.finditer(r"^```(\w+)\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL)
    return [Block(m[1], m[2], text.count("\n", 0, m.start()) + 1) for m in found]


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


def run_tour(page: Path, address: str, folder: Path) -> list[str]:
    """Runs its Python and console blocks; what the Python ones print. Of a console block each `$` line is run, and the
    lines below it are all that it prints."""
    tour = [block for block in blocks(page) if block.language in {"python", "console"}]
    assert {block.language for block in tour} == {"python", "console"}
    printed = []
    for block in tour:
        where = f"{page.name}:{block.line}"
        if block.language == "console":
            for part in re.split(r"^\$ ", block.text, flags=re.MULTILINE)[1:]:
                command, _, shown = part.partition("\n")
                assert run(["sh", "-c", command], address, folder, where) == shown, command
        else:
            script = block.text.replace(ADDRESS, address)
            printed.append(run([sys.executable, "-c", script], address, folder, where))
    return printed
