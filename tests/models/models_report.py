"""python -m tests.models.models_report: every model explored within its bounds, then without each of its rules.

    python -m tests.models.models_report [--stories]

prints the states of each search; two run at a time. A search that is not whole, or a rule that is not missed, is a
failure.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from typing import Any, Final

from tests.models.catalogue import MODELS, Search, run
from tests.models.explorer import Exploration

PROCESSES: Final = 2


def timed(search: Search) -> tuple[Exploration[Any], float]:
    """What it found, and the seconds of processor time."""
    began = time.process_time()
    return run(search), time.process_time() - began


def results() -> Iterator[tuple[Exploration[Any], float]]:
    with ProcessPoolExecutor(PROCESSES) as processes:
        yield from processes.map(timed, MODELS)


def line(search: Search, found: Exploration[Any], seconds: float, stories: bool) -> tuple[str, bool]:
    """What is printed of it, and whether it is as it should be."""
    if search.without:
        what = f"without {search.without}"
        outcome = f"found: {found.violation}, by {len(found.story)} steps" if found.violation else "NOT FOUND"
        is_right = found.violation is not None
    else:
        what = "all rules"
        outcome = f"all hold, up to {found.depth} steps" if found.whole else f"BROKEN: {found.violation}"
        is_right = found.whole
    told = f"{search.name:11} {what:33} {found.states:9,} states {seconds:6.1f} s  {search}\n{'':46}{outcome}"
    if found.story and (stories or not is_right or not search.without):
        told += "".join(f"\n{'':50}{step}" for step in found.story)
    return told, is_right


def main(arguments: list[str]) -> int:
    wrong = states = 0
    began = time.perf_counter()
    for search, (found, seconds) in zip(MODELS, results(), strict=True):
        told, is_right = line(search, found, seconds, "--stories" in arguments)
        print(told, flush=True)
        states += found.states
        wrong += not is_right
    print(
        f"{len(MODELS)} searches, {states:,} states, {time.perf_counter() - began:.0f} s, {wrong} not as they should be"
    )
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
