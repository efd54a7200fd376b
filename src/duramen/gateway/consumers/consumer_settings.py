"""What a new consumer is to be: the body of POST /consumers/{group}. Pure."""

from __future__ import annotations

import re
from typing import Any, Final, Literal, NamedTuple

import msgspec

from duramen.gateway.confluent.v2_media_types import Embedded
from duramen.gateway.edge.problem import ProblemError
from duramen.gateway.edge.request_json import decoded_json

OffsetReset = Literal["earliest", "latest", "none"]

NAME_LENGTH_MAX: Final = 200

_NAME: Final = re.compile(rf"[^\s/\x00-\x1f\x7f]{{1,{NAME_LENGTH_MAX}}}")
_BODY: Final = msgspec.json.Decoder(dict[str, Any])
_NUMBER: Final = re.compile(r"-?[0-9]{1,10}", re.ASCII)
_BOOLS: Final[dict[object, bool]] = {True: True, False: False, "true": True, "false": False}
_RESETS: Final[dict[str, OffsetReset]] = {
    "earliest": "earliest",
    "latest": "latest",
    "none": "none",
    "smallest": "earliest",
    "largest": "latest",
}
_NEED_SCHEMAS: Final = ("avro", "jsonschema", "protobuf")


class ConsumerSettings(NamedTuple):
    """name: "" for one that is made up; reset: where to begin without a committed offset; wait_ms: of a read that
    finds less than min_bytes."""

    name: str
    embedded: Embedded
    reset: OffsetReset
    auto_commit: bool
    min_bytes: int
    wait_ms: int


def consumer_settings(body: bytes) -> ConsumerSettings:
    """The settings in a body, which may be empty; values may be strings, as Kafka's are. Problem 400, 422."""
    given: dict[str, Any] = {}
    if body.strip():
        given = decoded_json(body, _BODY, "body")
    name, id = given.pop("name", None), given.pop("id", None)
    name = id or name or ""
    if not isinstance(name, str) or (name and (not _NAME.fullmatch(name) or name in (".", ".."))):
        raise _wrong("name", f"it has 1 to {NAME_LENGTH_MAX} characters, none of them a slash or a blank")
    found = ConsumerSettings(
        name,
        _embedded(given.pop("format", None)),
        _reset(given.pop("auto.offset.reset", None)),
        _flag("auto.commit.enable", given.pop("auto.commit.enable", None)),
        max(1, _number("fetch.min.bytes", given.pop("fetch.min.bytes", None), -1, 1, 10_000_000)),
        _number("consumer.request.timeout.ms", given.pop("consumer.request.timeout.ms", None), 0, 1000, 2**31 - 1),
    )
    if given:
        raise _wrong(next(iter(given)), "there is no such setting of a consumer")
    return found


def _embedded(given: object) -> Embedded:
    if given in (None, "binary"):
        return "binary"
    if given == "json":
        return "json"
    if given in _NEED_SCHEMAS:
        raise _wrong("format", f"{given} needs a schema registry, and there is none; take binary or json")
    raise _wrong("format", "it is binary or json")


def _reset(given: object) -> OffsetReset:
    if given is None:
        return "latest"
    found = _RESETS.get(given) if isinstance(given, str) else None
    if found is None:
        raise _wrong("auto.offset.reset", "it is earliest, latest or none")
    return found


def _flag(name: str, given: object) -> bool:
    if given is None:
        return True
    found = _BOOLS.get(given) if isinstance(given, str | bool) else None
    if found is None:
        raise _wrong(name, "it is true or false")
    return found


def _number(name: str, given: object, low: int, default: int, high: int) -> int:
    if given is None:
        return default
    if isinstance(given, str) and _NUMBER.fullmatch(given):
        given = int(given)
    if not isinstance(given, int) or isinstance(given, bool) or not low <= given <= high:
        raise _wrong(name, f"it is a whole number from {low} to {high}")
    return given


def _wrong(name: str, why: str) -> ProblemError:
    return ProblemError(422, "wrong-setting", f"Invalid consumer configuration: {name}: {why}")
