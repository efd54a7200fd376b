"""Content types of version 2: what a body holds, and in what form an answer is wanted. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final, Literal

from duramen.gateway.confluent.rest_errors import V2_JSON
from duramen.gateway.edge import media_type
from duramen.gateway.edge.problem import ProblemError

Embedded = Literal["binary", "json"]

_EMBEDDED: Final[dict[Embedded, str]] = {
    "binary": "application/vnd.kafka.binary.v2+json",
    "json": "application/vnd.kafka.json.v2+json",
}
_OFFERED: Final = (V2_JSON, "application/vnd.kafka+json", "application/json", *_EMBEDDED.values())
_PRODUCED: Final = re.compile(r"application/vnd\.kafka(\.(?P<embedded>[a-z]+))?(\.(?P<version>v[0-9]+))?(\+json)?")
_WITHOUT_FORMAT: Final = ("application/json", "application/octet-stream")
_NEED_SCHEMAS: Final = ("avro", "jsonschema", "protobuf")


def embedded_format(content_type: str | None) -> Embedded:
    """What the keys and values of a body are. A type that does not say it stands for binary. Problem 415."""
    essence = media_type.essence(content_type or V2_JSON)
    if essence in _WITHOUT_FORMAT:
        return "binary"
    found = _PRODUCED.fullmatch(essence)
    embedded = found["embedded"] if found else None
    if embedded in _NEED_SCHEMAS:
        raise _unsupported(f"{embedded} needs a schema registry, and there is none")
    if not found or found["version"] not in (None, "v2") or embedded not in (None, "binary", "json"):
        raise _unsupported("records come as application/vnd.kafka.binary.v2+json or application/vnd.kafka.json.v2+json")
    return "json" if embedded == "json" else "binary"


def answer_type(accept: str | None) -> str:
    """The type of an answer, out of those that Accept takes, the one that it prefers. Problem 406."""
    found = _preferred(accept, _OFFERED)
    if found is None:
        raise ProblemError(406, "not-acceptable", f"Accept: an answer is {V2_JSON} or application/json")
    return found


def consumed_type(accept: str | None, embedded: Embedded) -> str:
    """The type of an answer with records in this format: one that names it, or one that names none. Problem 406."""
    own = _EMBEDDED[embedded]
    found = _preferred(accept, (own, V2_JSON, "application/vnd.kafka+json", "application/json"))
    if found is not None:
        return found
    if _preferred(accept, tuple(f"application/vnd.kafka.{each}.v2+json" for each in (*_EMBEDDED, *_NEED_SCHEMAS))):
        raise ProblemError(
            406,
            "another-format",
            "The requested embedded data format does not match the deserializer for this consumer instance: it was "
            f"made with the format {embedded}, which is read with Accept: {own}",
        )
    raise ProblemError(406, "not-acceptable", f"Accept: records are {own}")


def _preferred(accept: str | None, offers: Sequence[str]) -> str | None:
    """The one of the offers that Accept prefers, or the first; None where it takes none."""
    if accept is None or not accept.strip():
        return offers[0]
    best: tuple[float, int] = (0.0, 0)
    for each in accept.split(","):
        weight = _weight(each)
        for place, offered in enumerate(offers):
            if _takes(media_type.essence(each), offered) and (weight, -place) > best:
                best = (weight, -place)
    return offers[-best[1]] if best[0] > 0 else None


def _takes(range_: str, offered: str) -> bool:
    return range_ in ("*/*", "application/*", offered)


def _weight(range_: str) -> float:
    for parameter in range_.split(";")[1:]:
        name, _, value = parameter.strip().partition("=")
        if name.strip().lower() == "q":
            return float(value) if re.fullmatch(r"[01](\.[0-9]{0,3})?", value.strip()) else 0.0
    return 1.0


def _unsupported(why: str) -> ProblemError:
    return ProblemError(415, "unsupported-type", f"Content-Type: {why}")
