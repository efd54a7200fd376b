"""Whether this life of Spark's driver has reached a cluster before: one that it never reached is given up soon.

A query that runs survives a node that is away, for as long as its options say. One that never reached a node has most
likely the wrong address. Spark plans each query, and each micro-batch of a sink, in another Python process, so that it
is written down where Spark keeps what lives as long as its driver.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

FIRST_CONTACT_S: Final = 3.0
"""A node that is just being started has so long; behind it comes at most one more attempt to connect."""
DRIVER_FOLDERS: Final = "SPARK_LOCAL_DIRS"
"""Spark tells its Python processes the folders of the block manager, which have a random name in each driver's life."""


def first_contact_s(bootstrap: str, environment: Mapping[str, str] = os.environ) -> float | None:
    """How long a first connection may take, as `Cluster` takes it; None where the cluster was reached before."""
    note = _note(bootstrap, environment)
    return None if note is not None and note.exists() else FIRST_CONTACT_S


def reached(bootstrap: str, environment: Mapping[str, str] = os.environ) -> None:
    """Write down that a node answered."""
    note = _note(bootstrap, environment)
    if note is not None:
        with suppress(OSError):  # then the next one has less patience
            note.touch()


def _note(bootstrap: str, environment: Mapping[str, str]) -> Path | None:
    folders = environment.get(DRIVER_FOLDERS)
    if not folders:
        return None
    return Path(folders.split(",")[0]) / f"duramen-{hashlib.sha256(bootstrap.encode()).hexdigest()[:32]}"
