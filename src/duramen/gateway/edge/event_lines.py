"""The gateway's log: one line per event on stderr, in the form that a node's has."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import TextIO


class EventLines:
    """Writes lines like `2026-01-31T12:00:00.000Z warning request-failed status=503 path="/v1/stream/a"`."""

    def __init__(self, out: TextIO) -> None:
        self._out = out

    def write(self, level: str, event: str, **fields: object) -> None:
        """One event. Values with blanks or quotes are quoted as JSON."""
        now = datetime.now(UTC)
        stamp = now.strftime("%Y-%m-%dT%H:%M:%S.") + f"{now.microsecond // 1000:03d}Z"
        said = "".join(f" {name}={_shown(value)}" for name, value in fields.items())
        self._out.write(f"{stamp} {level} {event}{said}\n")
        self._out.flush()


def _shown(value: object) -> str:
    text = str(value)
    plain = text.isascii() and text.isprintable() and text and not any(mark in text for mark in " =\"'")
    return text if plain else json.dumps(text)
