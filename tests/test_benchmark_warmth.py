"""Shows when the benchmark takes a broker for warm, with the rates of a run in which one was not."""

from __future__ import annotations

from benchmarks import warmth
from benchmarks.report import risen
from benchmarks.scenarios import Scenario, all_scenarios

COLD_JVM = [8_300.0, 9_400.0, 13_600.0, 14_900.0, 16_600.0]
"""Kafka in the first scenario of a run on a machine whose floor is 15.7 µs a request."""
NOISY = [15_000.0, 16_100.0, 14_600.0, 15_900.0, 15_200.0]


def test_a_warm_up_goes_on_while_the_rate_rises() -> None:
    assert not warmth.levelled(COLD_JVM)
    assert not warmth.levelled([*COLD_JVM, 17_900.0])
    assert warmth.levelled([*COLD_JVM, 16_800.0, 16_500.0, 16_700.0, 16_400.0])
    assert warmth.levelled([*NOISY, 15_500.0])


def test_one_slow_reading_does_not_end_a_warm_up() -> None:
    assert not warmth.levelled([8_000.0, 9_000.0, 10_000.0, 12_000.0, 14_000.0, 9_500.0])


def test_a_scenario_whose_broker_still_rises_says_so() -> None:
    scenario = next(
        each for each in all_scenarios(full=False) if each.rates([{"records": 1, "seconds": 1, "bytes": 1}])
    )
    rounds = {"Duramen": _samples(NOISY), "Kafka": _samples(COLD_JVM)}
    (remark,) = risen(scenario, rounds)
    assert remark == "Kafka still got faster, 8,300 → 16,600 /s: the ratio flatters Duramen"
    assert risen(scenario, {"Duramen": _samples(NOISY), "Kafka": _samples(NOISY)}) == []


def test_rounds_before_the_measured_ones_end_when_nothing_is_gained() -> None:
    assert warmth.gained(COLD_JVM[:3])
    assert not warmth.gained([*COLD_JVM, 16_700.0])
    assert not warmth.gained(COLD_JVM[:1])


def test_a_load_that_sets_its_own_rate_shows_nothing_about_warmth() -> None:
    delays = [each for each in all_scenarios(full=False) if "delay" in each.key]
    assert delays
    assert all(_rates(each) == [] for each in delays)


def _rates(scenario: Scenario) -> list[float]:
    return scenario.rates([{"p50_us": 1.0, "seconds": 1.0}])


def _samples(rates: list[float]) -> list[dict[str, float]]:
    return [{"records": rate, "seconds": 1.0, "bytes": rate} for rate in rates]
