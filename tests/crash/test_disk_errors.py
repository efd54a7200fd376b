"""Every call of the disk fails once, and no promise breaks. `make disk-errors` tries far more."""

from __future__ import annotations

import pytest
from tests.crash.disk_errors import carry_out, clearing_up, one_of_each, report, survey


@pytest.mark.timeout(900)
def test_every_disk_call_of_the_code_base_fails_once() -> None:
    found = survey()
    results = [carry_out(case) for case in one_of_each(found)]
    results += [carry_out(case) for case in clearing_up(results, found.sites)]
    wrong = report(found, results)
    assert wrong == [], "\n".join(wrong)
