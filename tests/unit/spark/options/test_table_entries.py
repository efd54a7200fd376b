"""Of a table in Spark's catalog the entries are passed over, and a query without options says how it gets them."""

from __future__ import annotations

import pytest

from duramen.errors import ConfigError
from duramen.spark.datasource import DuramenDataSource
from duramen.spark.options import options, sink_options
from duramen.spark.options.table_entries import without_table_entries

GIVEN = {"kafka.bootstrap.servers": "127.0.0.1:1", "subscribe": "flights"}
ENTRIES = {"provider": "duramen", "owner": "me", "location": "file:/x", "path": "file:/x", "comment": "late", "a": "b"}


def test_what_a_person_gave_is_left_of_a_tables_entries() -> None:
    spelled = {**ENTRIES, **GIVEN, **{f"option.{name}": value for name, value in GIVEN.items()}}
    assert without_table_entries(spelled) == GIVEN
    assert without_table_entries({name.upper(): value for name, value in spelled.items()}) == {
        name.upper(): value for name, value in GIVEN.items()
    }
    assert DuramenDataSource(spelled).options == GIVEN
    assert DuramenDataSource(spelled).schema() == DuramenDataSource(GIVEN).schema()


def test_options_of_a_query_are_not_searched_for_entries() -> None:
    """A slip is still named."""
    for slip in ("owner", "location", "option.subscribe"):
        with pytest.raises(ConfigError, match=f"unknown option {slip}"):
            options.any_query(DuramenDataSource({**GIVEN, slip: "x"}).options)


def test_a_query_of_a_table_says_where_its_options_belong() -> None:
    for parse in (options.any_query, sink_options.parse):
        with pytest.raises(ConfigError, match=r"kafka.bootstrap.servers is missing.*FROM t WITH.*INSERT INTO t WITH"):
            parse(DuramenDataSource(ENTRIES).options)
        with pytest.raises(ConfigError, match=r"kafka.bootstrap.servers is missing[^(]*$"):
            parse({"topic": "flights"} if parse is sink_options.parse else {"subscribe": "flights"})
