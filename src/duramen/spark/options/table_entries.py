"""What Spark adds to the options of a table in its catalog, and what it withholds.

CREATE TABLE ... USING duramen asks for the columns with the table's properties among the options: provider, owner,
location, comment, those of TBLPROPERTIES; each option stands there once more behind `option.`. A query of the table
then comes without any of them, but with its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

_PROVIDER: Final = "provider"
_OPTION: Final = "option."
NONE_CAME: Final = (
    " (of a table in Spark's catalog the query gives the options, for Spark hands on none of the table's: FROM t WITH "
    "('kafka.bootstrap.servers' = 'host:port', 'subscribe' = 'topic'), INSERT INTO t WITH (..., 'topic' = 'topic'))"
)
"""Behind an error for options of which there is none at all."""


def without_table_entries(given: Mapping[str, str]) -> Mapping[str, str]:
    """The options that a person gave. given: names in any case."""
    names = {name.lower(): name for name in given}
    if _PROVIDER not in names:
        return given
    return {name[len(_OPTION) :]: given[name] for low, name in names.items() if low.startswith(_OPTION)}
