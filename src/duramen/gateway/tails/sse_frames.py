"""Server-sent events: frames whose payload cannot break out of them, whatever line ends it has."""

from __future__ import annotations

import base64
import re

import msgspec

HEARTBEAT = b": still here\n\n"
"""A comment; proxies cut connections on which nothing comes."""

_LINE_END = re.compile(rb"\r\n|\r|\n")


class ControlData(msgspec.Struct, omit_defaults=True, rename="camel"):
    """What a control event says: where to go on, and whether that is the end for now, or for good."""

    stream_next_offset: str
    stream_cursor: str | None = None
    up_to_date: bool = False
    stream_closed: bool = False


def event(name: str, payload: bytes, event_id: str | None = None) -> bytes:
    """One event. Each line of the payload becomes a data line; CR and CRLF come back as LF, as in every SSE."""
    lines = [b"\ndata:" + (b" " + line if line.startswith(b" ") else line) for line in _LINE_END.split(payload)]
    tail = b"" if event_id is None else b"\nid: " + event_id.encode()
    return b"event: " + name.encode() + b"".join(lines) + tail + b"\n\n"


def data_event(payload: bytes, event_id: str, *, binary: bool) -> bytes:
    """An event with records; bytes that are no text go as base64. Its id is the position after them.

    So an EventSource that loses its connection in front of the control event does not get them a second time.
    """
    return event("data", base64.b64encode(payload) if binary else payload, event_id)


def lines_event(lines: bytes, event_id: str) -> bytes:
    """An event with lines of JSON, each of which ends with LF; it has them without the last LF."""
    return b"event: data\ndata:" + lines[:-1].replace(b"\n", b"\ndata:") + b"\nid: " + event_id.encode() + b"\n\n"


def control_event(control: ControlData, event_id: str) -> bytes:
    """The event after each data event. Its id is the position, too, which EventSource sends when it connects again."""
    return event("control", msgspec.json.encode(control), event_id)


def retry(pause_ms: int) -> bytes:
    """How long an EventSource waits before it connects again."""
    return b"retry: %d\n\n" % pause_ms
