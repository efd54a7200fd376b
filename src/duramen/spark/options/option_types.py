"""What an option's text may be: one function per kind, from text to a plain value, ValueError with what is expected."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Final

from duramen.model import TopicId, topic_id_from_text
from duramen.spark.options.positions import BESIDE, TOPIC_ID

LATEST: Final = -1
EARLIEST: Final = -2

MOST: Final = 2**63 - 1
INT_MAX: Final = 2**31 - 1
"""What Java's and the protocol's smaller numbers hold."""

Parse = Callable[[str], Any]

_SIZE = re.compile(r"(\d+)\s*([kmgt]?)i?b?", re.IGNORECASE)
_SIZES: Final = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_DURATION = re.compile(r"(\d+)\s*([a-z]*)")
_MILLISECONDS: Final = {
    "ms": 1,
    "s": 1000,
    "sec": 1000,
    "second": 1000,
    "m": 60_000,
    "min": 60_000,
    "minute": 60_000,
    "h": 3_600_000,
    "hour": 3_600_000,
    "d": 86_400_000,
    "day": 86_400_000,
}


class TopicOffsets(dict[str, dict[int, int]]):
    """Topic → partition → offset or timestamp. ids: of the topics that are meant, where the text names them."""

    def __init__(self) -> None:
        super().__init__()
        self.ids: dict[str, TopicId] = {}


def text(given: str) -> str:
    """Any text."""
    return given


def boolean(given: str) -> bool:
    """true or false."""
    word = given.strip().lower()
    if word not in ("true", "false"):
        raise ValueError("true or false")
    return word == "true"


def one_of(*words: str) -> Parse:
    """One of these words, whatever their case."""

    def parse(given: str) -> str:
        word = given.strip().lower()
        if word not in words:
            raise ValueError(" or ".join(words))
        return word

    return parse


def at_least(least: int, most: int = MOST) -> Parse:
    """A whole number from `least` to `most`, which the protocol, or Spark, has room for."""
    expected = f"a whole number from {least} {'on' if most == MOST else f'to {most}'}"

    def parse(given: str) -> int:
        try:
            number = int(given.strip())
        except ValueError:
            raise ValueError(expected) from None
        if not least <= number <= most:
            raise ValueError(expected if number < least else f"a whole number from {least} to {most}")
        return number

    return parse


def size(given: str) -> int:
    """Bytes: 1048576, 64m, 1 GiB; units are powers of 1024."""
    match = _SIZE.fullmatch(given.strip())
    if match is None or not 0 < (found := int(match[1]) * _SIZES[match[2].lower()]) <= MOST:
        raise ValueError("a size above 0 as 67108864, 64m or 1g")
    return found


def duration_ms(given: str) -> int:
    """Milliseconds: 15m, 30s, 500ms, 1 hour, or a number of milliseconds."""
    match = _DURATION.fullmatch(given.strip().lower())
    unit = "" if match is None else match[2] if match[2] in _MILLISECONDS else match[2].removesuffix("s")
    if match is None or (unit and unit not in _MILLISECONDS):
        raise ValueError("a time as 15m, 30s or 500ms")
    return int(match[1]) * (_MILLISECONDS[unit] if unit else 1)


def names(given: str) -> list[str]:
    """Names with commas between, none of them empty."""
    found = [name.strip() for name in given.split(",")]
    if not all(found):
        raise ValueError("names with commas between")
    return list(dict.fromkeys(found))


def pattern(given: str) -> str:
    """A regular expression that Python compiles; blanks around it are none of it, as in Spark's source."""
    given = given.strip()
    if not given:
        raise ValueError("a regular expression (this one is empty)")
    try:
        re.compile(given)
    except re.error as error:
        raise ValueError(f"a regular expression ({error})") from None
    return given


def partitions(given: str) -> dict[str, list[int]]:
    """JSON as {"topicA":[0,1],"topicB":[2,4]}."""
    expected = 'JSON as {"topicA":[0,1],"topicB":[2,4]}'
    found = _object(given, expected)
    for numbers in found.values():
        if not isinstance(numbers, list) or not numbers or not all(_is_count(number) for number in numbers):
            raise ValueError(expected)
    if not found:
        raise ValueError(expected)
    return {topic: sorted(set(numbers)) for topic, numbers in found.items()}


def offsets(given: str) -> int | TopicOffsets:
    """EARLIEST, LATEST, or offsets by topic and partition, in which -2 and -1 stand for these two."""
    word = given.strip().lower()
    if word in ("earliest", "latest"):
        return EARLIEST if word == "earliest" else LATEST
    return _by_partition(given, 'earliest, latest, or JSON as {"topicA":{"0":23,"1":-1},"topicB":{"0":-2}}', EARLIEST)


def ends(given: str) -> TopicOffsets:
    """Offsets by topic and partition."""
    return _by_partition(given, 'JSON as {"topicA":{"0":23,"1":5}}', 0)


def timestamps(given: str) -> TopicOffsets:
    """Timestamps (ms since 1970) by topic and partition."""
    return _by_partition(given, 'JSON as {"topicA":{"0":1000,"1":1000}}, in milliseconds since 1970', 0)


def _by_partition(given: str, expected: str, least: int) -> TopicOffsets:
    found = TopicOffsets()
    for topic, numbers in _object(given, expected).items():
        if not isinstance(numbers, dict):
            raise ValueError(expected)
        found[topic] = {}
        for partition, number in numbers.items():
            if partition in BESIDE:  # offsets that were taken from a checkpoint
                if partition == TOPIC_ID:
                    found.ids[topic] = _topic_id(number, expected)
                continue
            if not partition.isdecimal() or not isinstance(number, int) or isinstance(number, bool):
                raise ValueError(expected)
            if not least <= number <= MOST:
                raise ValueError(expected)
            found[topic][int(partition)] = number
    return found


def _topic_id(given: object, expected: str) -> TopicId:
    try:
        return topic_id_from_text(str(given))
    except ValueError:
        raise ValueError(expected) from None


def _object(given: str, expected: str) -> dict[str, Any]:
    try:
        found = json.loads(given)
    except ValueError:
        raise ValueError(expected) from None
    if not isinstance(found, dict):
        raise ValueError(expected)
    return found


def _is_count(number: object) -> bool:
    return isinstance(number, int) and not isinstance(number, bool) and number >= 0


def time_range(given: str) -> tuple[int, int]:
    """Two moments with a comma between, as milliseconds since 1970 or ISO 8601 (UTC unless it says); the second is out.

    One of them may be left away: "2026-01-01," is everything since.
    """
    first, comma, second = given.partition(",")
    if not comma or not given.strip(" ,"):
        raise ValueError("two moments with a comma between, as 2026-01-01T00:00Z,2026-01-02")
    since = _moment(first) if first.strip() else -(2**63)
    until = _moment(second) if second.strip() else 2**63 - 1
    if since > until:
        raise ValueError("the earlier moment first")
    return since, until


def _moment(given: str) -> int:
    word = given.strip()
    if word.removeprefix("-").isdecimal():
        return max(-MOST, min(int(word), MOST))
    try:
        moment = datetime.fromisoformat(word)
    except ValueError:
        raise ValueError("moments in milliseconds since 1970 or as 2026-01-01T00:00:00Z") from None
    moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    since_1970 = moment - datetime(1970, 1, 1, tzinfo=UTC)
    return (since_1970.days * 86_400 + since_1970.seconds) * 1000 + since_1970.microseconds // 1000


def plaintext_only(given: str) -> str:
    """PLAINTEXT, which is all that the client speaks."""
    if given.strip().upper() != "PLAINTEXT":
        raise ValueError("PLAINTEXT: TLS and SASL are not spoken yet")
    return "PLAINTEXT"
