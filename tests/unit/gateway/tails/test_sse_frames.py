"""A reader of server-sent events gets the payload, whatever it holds, and nothing that it makes up."""

from __future__ import annotations

import base64
import json
import re

from hypothesis import given
from hypothesis import strategies as st

from duramen.gateway.tails.sse_frames import ControlData, control_event, data_event, event


def parsed(stream: bytes) -> list[dict[str, str]]:
    """The events of a stream as a browser takes it apart (HTML, 9.2.6)."""
    found, fields = [], {"event": "", "data": "", "id": ""}
    for line in re.split("\r\n|\r|\n", stream.decode()):
        if not line:
            if fields["data"]:
                found.append({**fields, "data": fields["data"].removesuffix("\n")})
            fields = {"event": "", "data": "", "id": fields["id"]}
            continue
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if name == "data":
            fields["data"] += value + "\n"
        elif name in fields:
            fields[name] = value
    return found


@given(st.text(alphabet=st.sampled_from("\r\n :adetvnid{}é"), max_size=40))
def test_a_payload_cannot_break_out(text: str) -> None:
    frames = event("data", text.encode()) + control_event(ControlData("7"), "7")
    lines = text.replace("\r\n", "\n").replace("\r", "\n")
    first, second = parsed(frames)
    assert (first["event"], first["data"]) == ("data", lines)
    assert (second["event"], second["id"], json.loads(second["data"])) == ("control", "7", {"streamNextOffset": "7"})


@given(st.binary(min_size=1, max_size=50))
def test_bytes_go_as_base64(payload: bytes) -> None:
    (only,) = parsed(data_event(payload, "7", binary=True))
    assert base64.b64decode(only["data"]) == payload


def test_a_control_event_has_what_is_so() -> None:
    (only,) = parsed(control_event(ControlData("a", None, True, True), "a.1"))
    assert json.loads(only["data"]) == {"streamNextOffset": "a", "upToDate": True, "streamClosed": True}
