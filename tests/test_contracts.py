"""The import contracts bite: in a copy of the library with one wrong import for each of them, every one is broken."""

from __future__ import annotations

import configparser
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

# Contract → the file that gets a wrong import (created where there is none), and that import.
WRONG = {
    "down": ("model.py", "import duramen.storage.files.os_disk"),
    "pure": ("machines/contract.py", "import time"),
    "embedded": ("embedded/records.py", "import duramen.server.broker"),
    "synchronous": ("storage/segment/segment.py", "import asyncio"),
    "callbacks": ("server/broker.py", "import duramen.client.aio"),
    "light": ("server/broker.py", "import rich"),
    "strangers": ("machines/group/__init__.py", "import duramen.machines.metadata"),
    "group": ("machines/group/classic/state.py", "import duramen.machines.group.machine"),
    "protocol": ("gateway/topics.py", "import duramen.partition.replica.partition"),
    "door": ("partition/replica/partition.py", "import duramen.storage.log.log"),
    "storage": ("storage/files/atomic.py", "import duramen.storage.repair.salvage"),
    "partition": ("partition/replica/partition.py", "import duramen.partition.store.store"),
    "client": ("client/protocol/routes.py", "import duramen.client.blocking.cluster"),
    "server": ("server/net/loop.py", "import duramen.server.dispatch"),
    "sim": ("sim/world/disk.py", "import duramen.sim.run.campaign"),
    "cli": ("cli/shared/output.py", "import duramen.cli.commands.topic"),
    "spark": ("spark/options/options.py", "import duramen.spark.sink.sink"),
    "pipelines": ("pipelines/model/offsets.py", "import duramen.pipelines.run.runner"),
}


def contracts() -> dict[str, str]:
    """Contract id → its name, of every contract in the file."""
    file = configparser.ConfigParser()
    file.read(ROOT / ".importlinter")
    sections = [section for section in file.sections() if section.startswith("importlinter:contract:")]
    return {section.split(":")[-1]: file[section]["name"] for section in sections}


def test_every_contract_is_broken_by_what_it_forbids(tmp_path: Path) -> None:
    assert WRONG.keys() == contracts().keys()
    library = tmp_path / "src" / "duramen"
    shutil.copytree(ROOT / "src" / "duramen", library, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / ".importlinter", tmp_path)
    for name, statement in WRONG.values():
        path = library / name
        path.parent.mkdir(exist_ok=True)
        (path.parent / "__init__.py").touch()
        with path.open("a") as file:
            file.write(f"\n{statement}\n")
    ran = subprocess.run(
        [Path(sys.executable).parent / "lint-imports", "--no-cache"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path / "src"), "COLUMNS": "200"},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    verdicts = dict(re.findall(r"^(.+) (KEPT|BROKEN)(?: \(.*\))?$", ran.stdout, flags=re.MULTILINE))
    assert verdicts == dict.fromkeys(contracts().values(), "BROKEN"), ran.stdout[-3000:]
