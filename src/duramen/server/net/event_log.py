"""The server's log: one line per event on stderr, as key=value text or JSON."""

from __future__ import annotations

import io
import json
import sys
import traceback
from datetime import UTC, datetime
from typing import Any, TextIO


def _plain(value: Any) -> Any:
    if isinstance(value, bool | int | float | str) or value is None:
        return value
    return str(value)


def _text(value: Any) -> str:
    """As it is, or as a JSON string. Clients choose names: no character of theirs ends a line or steers a terminal."""
    text = str(_plain(value))
    if text and text.isprintable() and not any(c in text for c in ' "='):
        return text
    quoted = json.dumps(text, ensure_ascii=False)
    return quoted if quoted.isprintable() else "".join(c if c.isprintable() else json.dumps(c)[1:-1] for c in quoted)


class EventLog:
    """Writes events; `repeat_limit` of the same kind a second, so that a storm of them cannot fill a disk."""

    def __init__(self, as_json: bool, stream: TextIO | io.TextIOBase | None = None, repeat_limit: int = 20) -> None:
        self._json = as_json
        self._stream = stream or sys.stderr
        self._repeat_limit = repeat_limit
        self._second = 0
        self._counts: dict[str, int] = {}

    def __call__(self, level: str, event: str, fields: dict[str, Any]) -> None:
        now = datetime.now(UTC)
        second = int(now.timestamp())
        if second != self._second:
            suppressed = {name: n - self._repeat_limit for name, n in self._counts.items() if n > self._repeat_limit}
            self._second, self._counts = second, {}
            for name, count in suppressed.items():
                self._write(now, "info", "suppressed", {"event_name": name, "lines": count})
        self._counts[event] = self._counts.get(event, 0) + 1
        if self._counts[event] <= self._repeat_limit:
            self._write(now, level, event, fields)

    def dropped(self, lines: int) -> str:
        """The line that tells of lines which found no room (`LogWriter.notice`)."""
        return self._line(datetime.now(UTC), "warning", "log-dropped", {"lines": lines})

    def _line(self, now: datetime, level: str, event: str, fields: dict[str, Any]) -> str:
        stamp = now.strftime("%Y-%m-%dT%H:%M:%S.") + f"{now.microsecond // 1000:03d}Z"
        trace = fields.pop("traceback", None)
        if isinstance(trace, BaseException):
            fields["trace"] = "".join(traceback.format_exception(trace)).rstrip()
        if self._json:
            shown = {"time": stamp, "level": level, "event": event, **{k: _plain(v) for k, v in fields.items()}}
            return json.dumps(shown) + "\n"
        pairs = "".join(f" {name}={_text(value)}" for name, value in fields.items())
        return f"{stamp} {level} {event}{pairs}\n"

    def _write(self, now: datetime, level: str, event: str, fields: dict[str, Any]) -> None:
        try:
            self._stream.write(self._line(now, level, event, fields))
            self._stream.flush()
        except (OSError, ValueError):
            # Nobody reads our log any more; that must not stop the server.
            return
