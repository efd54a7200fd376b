"""A PostgreSQL of its own for a test, where the machine has one; spoken to over a socket in its folder."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

NOBODY_ELSE = "postgres"
"""The user whom Debian's package makes: the server does not run as root."""


def postgres_programs() -> Path | None:
    """The folder with initdb and postgres; None where there is none."""
    found = shutil.which("initdb")
    folders = [Path(found).resolve().parent] if found else sorted(Path("/usr/lib/postgresql").glob("*/bin"))
    return next((folder for folder in reversed(folders) if (folder / "postgres").exists()), None)


class ServedPostgres:
    """A cluster in a folder of its own, and the process that serves it. Use it as a context manager."""

    def __init__(self, programs: Path) -> None:
        self._programs = programs
        self._user = NOBODY_ELSE if os.getuid() == 0 else None
        self.folder = Path(tempfile.mkdtemp(prefix="duramen-postgres-"))
        self.conninfo = f"host={self.folder} user=bank dbname=postgres"

    def __enter__(self) -> ServedPostgres:
        if self._user is not None:
            shutil.chown(self.folder, self._user)
        data = str(self.folder / "data")
        self._run("initdb", "-D", data, "-A", "trust", "-U", "bank", "--no-sync").wait()
        self._process = self._run("postgres", "-D", data, "-k", str(self.folder), "-h", "")
        limit = time.monotonic() + 30
        while self._run("psql", "-h", str(self.folder), "-U", "bank", "-c", "SELECT 1", "postgres").wait() != 0:
            assert time.monotonic() < limit, (self.folder / "log").read_text()
            time.sleep(0.05)
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        time.sleep(0.1)  # its children leave the folder
        shutil.rmtree(self.folder, ignore_errors=True)

    def _run(self, name: str, *words: str) -> subprocess.Popen[bytes]:
        program = self._programs / name
        with (self.folder / "log").open("ab") as log:
            return subprocess.Popen(
                [str(program), *words],
                user=self._user,
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
