"""The clean-shutdown file: Kafka's, with the epoch of the broker that stopped (KIP-966), and a sign that it is ours.

Kafka's has no blanks. Ours has a row of them, which JSON passes over: a flipped bit of one leaves the others, and makes
the text no JSON. Files of ours from before have the epoch -1 instead.
"""

from __future__ import annotations

import json
import posixpath
from typing import Final, NamedTuple

from duramen.ports import Disk
from duramen.storage.checkpoint.kafka_files import CLEAN_SHUTDOWN
from duramen.storage.files.atomic import read_file

UNKNOWN_EPOCH: Final = -1
_OURS: Final = b" " * 8


class LastStop(NamedTuple):
    """Who stopped here: a broker of this epoch (-1: not told), and whether it was one of ours."""

    broker_epoch: int
    ours: bool


def encode_clean_shutdown(broker_epoch: int = UNKNOWN_EPOCH) -> bytes:
    """The file of a stop of ours, version 0 of Kafka's."""
    return b'{"version":0,%b"brokerEpoch":%d}' % (_OURS, broker_epoch)


def decode_clean_shutdown(content: bytes) -> LastStop | None:
    """None where it is nobody's: damaged, or empty as a file that was touched."""
    try:
        told = json.loads(content)
    except ValueError:
        return None
    epoch = told.get("brokerEpoch") if isinstance(told, dict) else None
    if not isinstance(epoch, int):
        return None
    # One flipped bit makes a carriage return of the sign of -1, which JSON passes over, too, or -0 of -1.
    ours = b"  " in content or b"-" in content or b"\r" in content
    return LastStop(max(epoch, UNKNOWN_EPOCH), ours)


def last_stop(disk: Disk, path: str) -> LastStop | None:
    """What the file in this directory says; None without one."""
    content = read_file(disk, posixpath.join(path, CLEAN_SHUTDOWN))
    return None if content is None else decode_clean_shutdown(content)


def kafka_was_here(disk: Disk, path: str) -> bool:
    """Whether a Kafka broker stopped here last."""
    stop = last_stop(disk, path)
    return stop is not None and not stop.ours
