"""Random bit flips in files at rest, and what became of each: python -m tests.scenarios.bit_flips --flips 10000

A flip is *noticed* when the node refuses to start, reports damage, or answers a request with an error; or when
`duramen log verify` finds it. It is *harmless* when every answer is the same as without it. Whatever is neither, and
any answer that differs without being an error, is wrong.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from random import Random

from tests.worlds.flipped_node import Answers, Event, Image, Life, Machine, NoStartError, Questions, disk_of

from duramen.errors import DuramenError
from duramen.storage.repair.report import Finding
from duramen.storage.repair.verify import verify_directory

STARTED_S = 300.0
"""When the node starts on the flipped files: later than all that happened before."""


@dataclass
class Case:
    """Files at rest, and what a node on them answers. untold: events of a start without a flip."""

    name: str
    life: Life
    image: Image
    answers: Answers
    told: list[Event]
    found: set[tuple[str, str, str]]


@dataclass
class Tally:
    """What became of the flips, by kind of file and outcome; `wrong` says the flips that nothing noticed."""

    flips: int = 0
    outcomes: Counter[tuple[str, str]] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)

    def table(self) -> str:
        """Counts by kind of file."""
        columns = ("at start", "by a read", "by verify", "harmless", "wrong")
        kinds = sorted({kind for kind, _ in self.outcomes})
        lines = [f"{'file':36}" + "".join(f"{column:>12}" for column in columns)]
        for kind in (*kinds, "all"):
            counts = [
                sum(n for (k, outcome), n in self.outcomes.items() if outcome == column and kind in (k, "all"))
                for column in columns
            ]
            lines.append(f"{kind:36}" + "".join(f"{count:>12,}" for count in counts))
        return "\n".join(lines)


def make_case(name: str, *, clean: bool, seed: int = 1) -> Case:
    """Fill the files, and ask what is to be asked of them before anything is flipped."""
    life = Life(seed)
    image = life.run(clean=clean)
    machine = Machine(disk_of(image), 9, later_s=STARTED_S)
    questions = Questions(life)
    questions.ask(machine)
    return Case(name, life, image, questions.answers, list(machine.events), _verified(image))


def kind_of(path: str, image: Image) -> str:
    """What kind of file this is: by suffix, segments by whether they are sealed."""
    name = path.rpartition("/")[2]
    home = path.split("/")[2]
    prefix = "" if not home.startswith("__") else home.rpartition("-")[0] + " "
    stem, dot, suffix = name.partition(".")
    if stem.isdecimal() and dot:
        if suffix == "log":
            suffix = "log, sealed" if f"{path[:-4]}.seal" in image else "log, active"
        return f"{prefix}*.{suffix}"
    if name.startswith("duramen-journal"):
        return "journal"
    return prefix + name


def _verified(image: Image) -> set[tuple[str, str, str]]:
    """The findings of `duramen log verify`."""
    try:
        report = verify_directory(disk_of(image), "/data", lambda size: None, decode=True)
    except DuramenError as error:
        return {("refused", "", str(error))}
    return {_key(finding) for finding in report.all_findings()}


def _key(finding: Finding) -> tuple[str, str, str]:
    return finding.kind, finding.path, finding.what


def flip(case: Case, random: Random, kinds: dict[str, list[str]], tally: Tally) -> None:
    """Flip one bit somewhere, start a node on it, ask everything, and count what became of it."""
    kind = random.choice(sorted(kinds))
    path = random.choice(kinds[kind])
    content = bytearray(case.image[path])
    bit = random.randrange(len(content) * 8)
    content[bit // 8] ^= 1 << bit % 8
    image = {**case.image, path: bytes(content)}
    outcome, wrong = outcome_of(case, image, random)
    tally.flips += 1
    tally.outcomes[(kind, outcome)] += 1
    for line in wrong:
        tally.wrong.append(f"{case.name}: bit {bit % 8} of byte {bit // 8} of {path}: {line}")


def outcome_of(case: Case, image: Image, random: Random) -> tuple[str, list[str]]:
    """(how it was noticed or "harmless", what was wrong)."""
    questions = Questions(case.life, case.answers, random)
    try:
        machine = Machine(disk_of(image), 9, later_s=STARTED_S)
    except NoStartError as refusal:
        if not isinstance(refusal.cause, DuramenError):
            return "wrong", [f"the start ends with {refusal.cause!r}"]
        return "at start", []
    except TimeoutError as error:
        return "wrong", [str(error)]
    at_start = [event for event in machine.events if event not in case.told]
    try:
        questions.ask(machine)
    except (NoStartError, TimeoutError) as error:
        return "wrong", [f"while it was asked: {error}"]
    if questions.wrong:
        return "wrong", questions.wrong
    if at_start:
        return "at start", []
    told = [event for event in machine.events if event[1] == "damage"]
    if questions.refused:
        if not any(event[0] == "error" for event in machine.events):
            return "wrong", [f"nothing reported: {questions.refused[0]}"]
        return "by a read", []
    if told:
        return "by a read", []
    if _verified(image) - case.found:
        return "by verify", []
    return "harmless", []


def run(flips: int, seed: int, cases: list[Case], only: str = "") -> Tally:
    """So many flips, evenly over the kinds of files (whose name has `only` in it)."""
    random = Random(seed)
    tally = Tally()
    places: list[dict[str, list[str]]] = []
    for case in cases:
        kinds: dict[str, list[str]] = {}
        for path, content in sorted(case.image.items()):
            if content and only in kind_of(path, case.image):
                kinds.setdefault(kind_of(path, case.image), []).append(path)
        places.append(kinds)
    for number in range(flips):
        flip(cases[number % len(cases)], random, places[number % len(cases)], tally)
    return tally


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--flips", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default="", help="kinds of files whose name has this in it")
    options = parser.parse_args()
    began = time.monotonic()
    cases = [make_case("clean stop", clean=True), make_case("kill", clean=False)]
    tally = run(options.flips, options.seed, cases, options.only)
    print(
        f"{tally.flips:,} flips, seed {options.seed}, {time.monotonic() - began:.0f} s, "
        "half of them after a clean stop and half after a kill"
    )
    print(tally.table())
    for line in tally.wrong[:40]:
        print(line)
    return 1 if tally.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
