"""Failures of Spark's queries: which kind passes, and the reason at the bottom of one, in a line."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from itertools import takewhile
from typing import TypeVar

from pyspark.errors import PySparkException

from duramen.errors import DeadlineError, DuramenError, KafkaError, NetworkError
from duramen.pipelines.run.cluster import UnreachableError

CAUSES_MAX = 16
RESTART_SECONDS = (0.5, 1, 2, 4, 8)
Say = Callable[[str], None]
Mark = Callable[[str], None]
_T = TypeVar("_T")
_OURS = ("duramen.", "pyspark.errors.")
"""Errors that speak for themselves, without their names."""
_RAISED = re.compile(r"[A-Za-z_][\w.]*: \S")
_DEEPER, _COLOURS = "↳ ", re.compile("\x1b\\[[0-9;]*m")
"""How Delta's library begins the lines of what lies behind an error, and what it puts around that."""
_TOO_LARGE = (
    ": --conf spark.driver.maxResultSize=4g --conf spark.driver.memory=6g let this batch through, and "
    "maxBytesPerTrigger in the options of its Topic keeps later ones smaller"
)
_STATE = re.compile(r"\[STATE_STORE_\w*SCHEMA_NOT_COMPATIBLE\]")
_OF_STATE = (
    "Spark's state of the step (sums, keys, sides of a join) has columns of other types: `duramen spark reprocess` "
    "builds it again"
)


class QueryFailedError(DuramenError):
    """A step's query ended with an error, also after it was started again. Its cause tells all of it."""


def nowhere(_point: str) -> None:
    """The mark that does nothing; tests pass one that fails at a named point."""


def patiently(name: str, call: Callable[[], _T], say: Say, until: Callable[[], bool]) -> _T | None:
    """What the call gives; tried again while its failure is of the kind that passes. None when told to stop meanwhile.

    QueryFailedError with the reason in one line where it does not pass.
    """
    for wait in (*RESTART_SECONDS, *RESTART_SECONDS[-1:] * 3, None):
        if until():
            return None
        try:
            return call()
        except (PySparkException, NetworkError, DeadlineError, UnreachableError, KafkaError) as failure:
            if wait is None or not may_pass(failure):
                raise QueryFailedError(f"{name}: {reason(failure)}") from failure
            say(f"{name}: {reason(failure)}; again in {wait} s")
            rest(wait, until)
    return None


def rest(seconds: float, until: Callable[[], bool]) -> None:
    """Sleep, or less when told to stop."""
    end = time.monotonic() + seconds
    while not until() and (left := end - time.monotonic()) > 0:
        time.sleep(min(left, 0.1))


def told(failure: BaseException) -> str:
    """All that Spark's error says, and each of its causes behind it: where Spark gives up a write because its end was
    refused, only a cause says why."""
    texts: list[str] = []
    cause: BaseException | None = failure
    while cause is not None and len(texts) < CAUSES_MAX:
        texts.append(str(cause))
        cause = getattr(cause, "_cause", None)
    return "\n".join(texts)


def may_pass(failure: BaseException) -> bool:
    """Whether a failure is of the kind that a node which is away for a while causes, or a machine too busy to start
    a worker in the ten seconds that Spark gives it."""
    if isinstance(failure, DuramenError):
        return failure.retriable or isinstance(failure, NetworkError | DeadlineError | UnreachableError)
    text = told(failure)
    signs = (
        "NetworkException",
        "NETWORK_EXCEPTION",
        "ConnectionRefused",
        "ConnectionReset",
        "cannot reach",
        "timed out",
    )
    more = ("BrokenPipe", "Connection refused", "Connection reset", "LEADER_NOT_AVAILABLE", "no node answered")
    busy = ("failed to connect back", "CANNOT_OPEN_SOCKET")
    return any(sign in text for sign in (*signs, *more, *busy))


def _ends_a_traceback(lines: Sequence[str], at: int) -> bool:
    """Whether the line is what a Python traceback ends with, the error: its name need not end so."""
    of_a_frame = any(line.startswith('  File "') for line in lines[max(0, at - 3) : at])
    return of_a_frame and _RAISED.match(lines[at]) is not None


def reason(failure: PySparkException | BaseException) -> str:
    """The cause at the bottom of Spark's error, in one line."""
    whole = [line for line in _COLOURS.sub("", told(failure)).splitlines() if line.strip()]
    lines = [line.strip() for line in whole]
    if any(map(_STATE.search, lines)):
        types = next((line for line in lines if line.startswith("Existing ")), "")
        return f"{_OF_STATE}. {types}"[:500].rstrip(". ")
    for at, line in reversed(list(enumerate(lines))):
        if "Py4JJavaError: " in line:  # which tells the number of an object
            continue
        if line.startswith(_OURS) or "Error: " in line.split("(")[0] or _ends_a_traceback(whole, at):
            found = line.partition(": ")[2] if line.startswith(_OURS) else line.removeprefix("Caused by: ")
            deeper = takewhile(lambda each: each.startswith(_DEEPER), lines[at + 1 :])
            return ": ".join([found, *(each.removeprefix(_DEEPER) for each in deeper)])[:500]
    for line in reversed(lines):
        if line.startswith("Caused by: "):
            found = line.removeprefix("Caused by: ").partition(": ")[2][:500]
            return found + (_TOO_LARGE if "spark.driver.maxResultSize" in found else "")
    return lines[0][:500] if lines else type(failure).__name__
