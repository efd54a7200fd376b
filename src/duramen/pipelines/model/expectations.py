"""What a step expects of its rows, and what becomes of those that do not hold."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal, NamedTuple, get_args

from duramen.errors import ConfigError

OnViolation = Literal["fail", "drop", "quarantine"]
_WAYS: Final = get_args(OnViolation)


class Expectations(NamedTuple):
    """conditions: names with what Spark's SQL says of the columns of the function's rows. A condition that is null does
    not hold. Deletions are not asked.

    on_violation: "fail" the batch naming the record, "drop" the row, or "quarantine" its record as a dead letter.
    """

    conditions: tuple[tuple[str, str], ...] = ()
    on_violation: OnViolation = "fail"

    @property
    def quarantines(self) -> bool:
        """Whether rows become dead letters."""
        return bool(self.conditions) and self.on_violation == "quarantine"


def expectations(expect: Mapping[str, str] | None, on_violation: OnViolation, *, aggregate: bool) -> Expectations:
    """As they are declared. ConfigError for what cannot be meant."""
    given = dict(expect or {})
    for name, condition in given.items():
        if not (isinstance(name, str) and name.strip() and isinstance(condition, str) and condition.strip()):
            raise ConfigError(f"expect={{{name!r}: {condition!r}}}: a name and an SQL condition, as 'amount > 0'")
        if "," in name:
            raise ConfigError(f"expect={{{name!r}: ...}}: the name of an expectation has no comma, which parts several")
    if on_violation not in _WAYS:
        raise ConfigError(f"on_violation={on_violation!r}; there are {', '.join(_WAYS)}")
    if on_violation != "fail" and not given:
        raise ConfigError(f'on_violation="{on_violation}" says what becomes of rows that expect= does not hold for')
    if on_violation == "quarantine" and aggregate:
        raise ConfigError(
            "a row of an aggregate comes of many records, none of which is a dead letter: quarantine rows of a step "
            'before it, or fail. corrupt="quarantine" of its Topic works'
        )
    return Expectations(tuple(given.items()), on_violation)
