"""An error at every call of the disk, one run for each: what `make disk-errors` runs.

    python -m tests.crash.disk_errors [--workers 2] [--only MODULE]

A first run of every workload notes the call sites it comes by. Then each site fails, in each workload that comes by it:
at its first, a middle and its last call, with EIO, and where space is needed with ENOSPC. Sites that only show up
behind an error clear up after it: they fail in a run in which that error happens first.
"""

from __future__ import annotations

import argparse
import errno
import multiprocessing
import sys
import time
from collections import Counter
from collections.abc import Callable
from functools import cache, partial
from typing import NamedTuple

from tests.crash.call_sites import Site, written_sites
from tests.crash.node_trials import embedded_trial, everything, node_trial, sinks, transport_trial
from tests.crash.odd_paths import ODD_PATHS
from tests.crash.tools_trial import tools_trial
from tests.crash.trials import behind_a_seal_trial, gap_trial, start_trial, storage_trial, telling_states
from tests.crash.watched import HINTS, Fault
from tests.crash.write_paths import STORAGE_PATHS

TAKES_SPACE = frozenset({"pwritev", "truncate", "preallocate", "open", "rename", "make_directories", "sync"})

Trial = Callable[["Fault | None"], "Counter[Site]"]


@cache
def trials() -> dict[str, Trial]:
    """Every workload that takes a fault, by name."""
    found: dict[str, Trial] = {}
    for name, path in {**STORAGE_PATHS, **ODD_PATHS}.items():
        found[name] = partial(storage_trial, path)
    for number, state in enumerate(telling_states(STORAGE_PATHS.values())):
        found[f"start {number}"] = partial(start_trial, state)
    for how in ("unclean", "journal", "short", "middle", "gone", "again", "lost", "missing", "strays", "swaps", "anew"):
        found[f"tools, {how}"] = partial(tools_trial, how)
    found["node"] = partial(node_trial, everything)
    found["sink"] = partial(node_trial, sinks)
    found["embedded"] = embedded_trial
    found["gap in a journal"] = gap_trial
    found["behind a seal"] = behind_a_seal_trial
    found["transport"] = transport_trial
    return found


class Survey(NamedTuple):
    """Which workload comes by which site how often, without any error, and what each costs in seconds."""

    hits: dict[str, Counter[Site]]
    cost: dict[str, float]

    @property
    def sites(self) -> set[Site]:
        """All that were come by."""
        return {site for counted in self.hits.values() for site in counted}

    def cheapest(self, site: Site) -> str:
        """The quickest workload that comes by a site."""
        return min((name for name, counted in self.hits.items() if site in counted), key=lambda name: self.cost[name])


def survey() -> Survey:
    """Run every workload once."""
    hits, cost = {}, {}
    for name, trial in trials().items():
        began = time.process_time()
        hits[name] = trial(None)
        cost[name] = time.process_time() - began
    return Survey(hits, cost)


class Case(NamedTuple):
    """One run: this fault in this workload."""

    name: str
    fault: Fault


class Result(NamedTuple):
    """What became of a case. seen: all sites it came by; wrong: what was not as it has to be, None when all was."""

    case: Case
    happened: bool
    seen: frozenset[Site]
    wrong: str | None


def carry_out(case: Case) -> Result:
    """Run a case."""
    fault = case.fault.copy()
    wrong = None
    seen: frozenset[Site] = frozenset()
    try:
        seen = frozenset(trials()[case.name](fault))
    except Exception as error:  # noqa: BLE001 - whatever it is, it is a finding
        wrong = f"{case.name}, {fault.site} call {fault.number}, {errno.errorcode[fault.error]}: "
        wrong += f"{type(error).__name__}: {error}"
    return Result(case, fault.happened, seen, wrong)


def one_of_each(found: Survey) -> list[Case]:
    """Every site once, at its first call, in the quickest workload that comes by it."""
    return [Case(found.cheapest(site), Fault(site)) for site in sorted(found.sites) if site.method not in HINTS]


def all_of_them(found: Survey) -> list[Case]:
    """Every site in every workload: first, middle and last call."""
    listed = []
    for name, counted in found.hits.items():
        for site, count in sorted(counted.items()):
            if site.method not in HINTS:
                errors = (errno.EIO, errno.ENOSPC) if site.method in TAKES_SPACE else (errno.EIO,)
                for number in sorted({1, (count + 1) // 2, count}):
                    listed += [Case(name, Fault(site, number, error)) for error in errors]
    return listed


def clearing_up(results: list[Result], known: set[Site]) -> list[Case]:
    """For sites that only show up behind an error: that error again, and then one there, too."""
    cases: dict[Site, Case] = {}
    for result in results:
        for site in sorted(result.seen - known):
            fault = result.case.fault.copy()
            fault.then = site
            cases.setdefault(site, Case(result.case.name, fault))
    return list(cases.values())


def report(found: Survey, results: list[Result]) -> list[str]:
    """Print the counts and return what is wrong: sites that no workload comes by, errors that were not borne."""
    seen = found.sites.union(*(result.seen for result in results))
    failed = {result.case.fault.then or result.case.fault.site for result in results if result.happened}
    hints = {site for site in seen if site.method in HINTS}
    wrong = [result.wrong for result in results if result.wrong is not None]
    wrong += [f"never come by: {site}" for site in sorted(written_sites() - seen)]
    wrong += [f"come by and not found in the sources: {site}" for site in sorted(seen - written_sites())]
    wrong += [f"never failed: {site}" for site in sorted(seen - failed - hints)]
    happened = sum(result.happened for result in results)
    print(
        f"{len(written_sites())} call sites of the disk, {len(seen & written_sites())} come by, {len(failed)} failed "
        f"at least once ({len(hints)} are hints that cannot); {happened:,} errors in {len(results):,} runs of "
        f"{len(found.hits)} workloads, {len(wrong)} findings"
    )
    return wrong


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.crash.disk_errors")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--only", help="sites of modules whose path contains this")
    arguments = parser.parse_args()
    began = time.monotonic()
    found = survey()
    cases = [case for case in all_of_them(found) if arguments.only is None or arguments.only in case.fault.site.module]
    with multiprocessing.get_context("spawn").Pool(arguments.workers) as pool:
        results = list(pool.imap_unordered(carry_out, cases, chunksize=8))
        results += pool.map(carry_out, clearing_up(results, found.sites))
    wrong = report(found, results)
    for line in wrong[:40]:
        print("  " + line)
    print(f"{time.monotonic() - began:.0f} s")
    return 1 if wrong and arguments.only is None else 0


if __name__ == "__main__":
    sys.exit(main())
