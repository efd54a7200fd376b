"""Duramen: a distributed log that speaks the Apache Kafka protocol.

Embedded use, without a server:

    with duramen.open("path") as log:
        events = log.topic("events", partitions=1)
        offsets = events.append([duramen.Record(value=b"v", key=b"k")])
"""

from __future__ import annotations

from importlib import import_module as _import_module
from typing import TYPE_CHECKING, Any

from duramen.errors import (
    ClosedError,
    ConfigError,
    CorruptLogError,
    DirectoryLockedError,
    DuramenError,
    ErrorCode,
    FencedDirectoryError,
    KafkaError,
    StorageError,
)
from duramen.version import VERSION

if TYPE_CHECKING:
    from duramen.embedded import EmbeddedLog, LogEnd, Record, StoredRecord, Topic, Writer
    from duramen.embedded import open_log as open

__version__ = VERSION

__all__ = [
    "ClosedError",
    "ConfigError",
    "CorruptLogError",
    "DirectoryLockedError",
    "DuramenError",
    "EmbeddedLog",
    "ErrorCode",
    "FencedDirectoryError",
    "KafkaError",
    "LogEnd",
    "Record",
    "StorageError",
    "StoredRecord",
    "Topic",
    "Writer",
    "__version__",
    "open",
]

_EMBEDDED = {
    "EmbeddedLog": "EmbeddedLog",
    "LogEnd": "LogEnd",
    "Record": "Record",
    "StoredRecord": "StoredRecord",
    "Topic": "Topic",
    "Writer": "Writer",
    "open": "open_log",
}


def __getattr__(name: str) -> Any:
    """The embedded engine is imported when it is first asked for: the server and the CLI do not need it."""
    if name not in _EMBEDDED:
        raise AttributeError(f"module 'duramen' has no attribute {name!r}")
    return getattr(_import_module("duramen.embedded"), _EMBEDDED[name])


def __dir__() -> list[str]:
    """What there is for callers, also what is not imported yet."""
    return sorted({*(name for name in globals() if name.startswith("__")), *__all__})
