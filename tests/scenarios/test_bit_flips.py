"""Some hundred of the bit flips of `make bit-flips`, after a clean stop and after a kill."""

from __future__ import annotations

from random import Random

import pytest
from tests.scenarios.bit_flips import Case, make_case, outcome_of, run
from tests.worlds.flipped_node import Life, Machine, Questions, disk_of

from duramen.wire.batch import CRC_START, batches


@pytest.fixture(scope="module")
def cases() -> list[Case]:
    return [make_case("clean stop", clean=True), make_case("kill", clean=False)]


def test_each_flip_is_noticed_or_changes_no_answer(cases: list[Case]) -> None:
    tally = run(120, 20, cases)
    assert tally.wrong == [], "\n".join(tally.wrong[:10])
    assert tally.flips == 120
    noticed = sum(count for (_, outcome), count in tally.outcomes.items() if outcome != "harmless")
    assert noticed > 60


@pytest.mark.parametrize("number", [0, 1])
def test_flips_in_what_a_batchs_checksum_leaves_out_are_noticed(cases: list[Case], number: int) -> None:
    """Offsets, lengths and epochs of batches in sealed and in active segments: clients would take them for true."""
    case, random = cases[number], Random(number)
    paths = [path for path in sorted(case.image) if path.endswith(".log") and path.startswith("/data/events-")]
    for _ in range(24):
        path = random.choice(paths)
        position = random.choice([at for at, _ in batches(memoryview(case.image[path]))])
        content = bytearray(case.image[path])
        bit = random.randrange(CRC_START * 8)
        content[position + bit // 8] ^= 1 << bit % 8
        outcome, wrong = outcome_of(case, {**case.image, path: bytes(content)}, random)
        assert wrong == []
        # Below the log start, records are not to be had any more: what is flipped there changes no answer.
        assert outcome != "harmless" or path.endswith("-0/00000000000000000000.log")


def test_the_questions_can_be_answered_wrongly(cases: list[Case]) -> None:
    """The harness itself: answers of another life are noticed as wrong ones."""
    case = cases[0]
    machine = Machine(disk_of(Life(2).run(clean=True)), 9, later_s=300.0)
    questions = Questions(case.life, case.answers, Random(1))
    questions.ask(machine)
    assert questions.wrong
