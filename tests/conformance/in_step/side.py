"""One of the two servers that get the same requests: its connection, its names for ids, its answers made comparable."""

from __future__ import annotations

import contextlib
import json
import re
import time
from collections.abc import Callable
from typing import Any

from duramen.client.blocking.connection import BlockingConnection
from duramen.errors import DuramenError
from duramen.wire.errors import EncodeError
from duramen.wire.messages import API
from duramen.wire.schema import Message
from duramen.wire.types import Array, Struct

CLIENT = "in-step"
ANSWER_S = 5.0
MAX_FRAME_BYTES = 64 << 20
HUNG_UP = {"hung up": True}
LEFT_OUT = {"throttle_time_ms", "error_message", "host", "port", "client_host", "documentation"}
"""Wording, addresses and loads are each server's own."""
MOMENTS = {"timestamp", "transaction_start_time_ms", "last_timestamp", "log_append_time_ms"}

GIVEN_ID = re.compile(rf"{CLIENT}-[0-9a-f-]{{36}}|^[A-Za-z0-9_-]{{22}}$")
"""A classic member's."""

Spec = dict[str, Any]
"""The fields of a request; a value may be a function of the side, for what each server has named itself."""


class Side:
    """See the module."""

    def __init__(self, name: str, port: int) -> None:
        self.name = name
        self.port = port
        self.chapter = ""
        self.topics: dict[str, bytes] = {}
        self.members: dict[str, str] = {}
        self._topic_names: dict[bytes, str] = {}
        self._producers: dict[int, str] = {}
        self._line: BlockingConnection | None = None

    def know_topic(self, name: str, id: bytes) -> None:
        self.topics[name] = id
        self._topic_names[id] = name

    def producer_name(self, id: int) -> Any:
        """Both sides name producer ids in the order in which they give them out."""
        return id if id < 0 or id >= 1 << 40 else self._producers.setdefault(id, f"producer {len(self._producers)}")

    def begin(self, chapter: str) -> None:
        """Forget the names of the chapter before."""
        self.chapter = chapter
        self._producers.clear()
        self.members.clear()

    def call(self, key: int, version: int, spec: Spec) -> tuple[Any, Any]:
        """(the response or None, what is compared)."""
        response, missing = self.ask(key, version, spec)
        return response, missing or self._fields(API[key].response.struct, response, version)

    def ask(self, key: int, version: int, spec: Spec) -> tuple[Any, Spec | None]:
        """(the response, None), or None and how it did not come."""
        api = API[key]
        try:
            request = self._built(api.request, api.request.struct, version, spec)
            until = time.monotonic() + ANSWER_S
            if self._line is None or self._line.closed:
                self._line = BlockingConnection("127.0.0.1", self.port, CLIENT, until, MAX_FRAME_BYTES)
            response = self._line.call(key, request, until, version)
        except EncodeError:
            raise
        except DuramenError as error:
            self.close()
            return None, {"silent": True} if "time" in str(error) else HUNG_UP
        return response, None

    def close(self) -> None:
        if self._line is not None:
            with contextlib.suppress(OSError):
                self._line.close()
            self._line = None

    def _built(self, message: Message, struct: Struct, version: int, spec: Spec) -> Any:
        found = {}
        for field in struct.fields:
            if field.name in spec and version in field.versions:
                value = spec[field.name]
                value = value(self) if callable(value) else value
                inner = field.type.element if isinstance(field.type, Array) else field.type
                if isinstance(inner, Struct) and value is not None:
                    many = isinstance(field.type, Array)
                    value = [self._built(message, inner, version, each) for each in (value if many else [value])]
                    value = value if many else value[0]
                found[field.name] = value
        return message.classes.constructors[struct.name](**found)

    def _fields(self, struct: Struct, value: Any, version: int) -> Any:
        found = {}
        for field in struct.fields:
            if version not in field.versions or field.name in LEFT_OUT:
                continue
            each = getattr(value, field.name)
            if isinstance(field.type, Array):
                each = None if each is None else self._list(field.type.element, field.name, each, version)
            elif isinstance(field.type, Struct):
                each = None if each is None else self._fields(field.type, each, version)
            else:
                each = self._named(field.name, each)
            found[field.name] = each
        if found.get("error_code"):
            found.pop("log_start_offset", None)
        return found

    def _list(self, element: Any, name: str, values: list[Any], version: int) -> list[Any]:
        if name in ("groups", "config_resources"):  # earlier chapters' may be different, and are told there
            whose = "group_id" if name == "groups" else "resource_name"
            values = [
                each for each in values if getattr(each, whose).startswith(self.chapter) or not getattr(each, whose)
            ]
        if isinstance(element, Struct):
            found = [self._fields(element, each, version) for each in values]
        else:
            found = [self._named(name, each) for each in values]
        return sorted(found, key=lambda each: json.dumps(each, sort_keys=True))

    def _named(self, name: str, value: Any) -> Any:
        if name == "producer_id":
            return self.producer_name(value)
        if name == "topic_id":
            return self._topic_names.get(value, value.hex())
        if name in MOMENTS:
            return value if value <= 0 else "a moment"
        if isinstance(value, bytes | bytearray | memoryview):
            return bytes(value).hex()
        if isinstance(value, str):
            return GIVEN_ID.sub("an id of its own", value)
        return value


class Own:
    """A value that each side has named itself; as a field of a request."""

    def __init__(self, says: str, of: Callable[[Side], Any]) -> None:
        self.says = says
        self._of = of

    def __call__(self, side: Side) -> Any:
        return self._of(side)
