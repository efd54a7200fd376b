"""Refusals in the form of Confluent's API: a number, which is the status or the status with two digits more. Pure."""

from __future__ import annotations

import re
from typing import Final

import msgspec

from duramen.gateway.edge.problem import ProblemError

V3_JSON: Final = "application/json"
V2_JSON: Final = "application/vnd.kafka.v2+json"

_V2_PATH: Final = re.compile(r"/(topics|consumers|brokers)(/.*)?", re.DOTALL)
_V3_PATH: Final = re.compile(r"/v3(/.*)?", re.DOTALL)

_V3_NUMBERS: Final = {
    "no-such-topic": 40403,
    "no-such-stream": 40403,
    "no-such-partition": 40403,
    "topic-exists": 40002,
    "login-needed": 40101,
    "not-allowed": 40301,
    "refused": 50002,
}
_V2_NUMBERS: Final = {
    "no-such-topic": 40401,
    "no-such-stream": 40401,
    "no-such-partition": 40402,
    "no-such-instance": 40403,
    "another-format": 40601,
    "consumer-exists": 40902,
    "consumer-state": 40903,
    "wrong-setting": 42204,
    "unfit-record": 50002,
    "key-schema-needed": 42201,
    "value-schema-needed": 42202,
    "login-needed": 40101,
    "not-allowed": 40301,
    "refused": 50002,
}
_REFUSED_BY_KAFKA: Final = {400: 40002, 503: 50003}
"""By the status; 50003: the same request may succeed later."""


class RestError(msgspec.Struct):
    """A refusal as it travels."""

    error_code: int
    message: str


def version_of(path: str) -> int:
    """2 or 3: of Confluent's API, where the path is in it; else 0."""
    return 3 if _V3_PATH.fullmatch(path) else 2 if _V2_PATH.fullmatch(path) else 0


def rest_status(version: int, code: str, status: int) -> int:
    """The status of a problem: what the cluster refused for another reason is 500 in Confluent's API, 502 elsewhere."""
    return 500 if version and code == "refused" else status


def error_number(version: int, code: str, status: int, *, by_kafka: bool = False) -> int:
    """The number of a problem. by_kafka: the cluster refused it."""
    known = (_V2_NUMBERS if version == 2 else _V3_NUMBERS).get(code)
    if known is None and (by_kafka or status == 503):
        known = _REFUSED_BY_KAFKA.get(status)
    return status if known is None else known


def rest_error(version: int, problem: ProblemError) -> RestError:
    """The refusal that stands for a problem."""
    by_kafka = problem.kafka_error is not None
    return RestError(error_number(version, problem.code, problem.status, by_kafka=by_kafka), problem.detail)
