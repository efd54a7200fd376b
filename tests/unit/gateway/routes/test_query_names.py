"""A misspelt parameter is refused where all are ours; where clients may bring their own, if it is close to one."""

from __future__ import annotations

import pytest

from duramen.gateway.edge.problem import ProblemError
from duramen.gateway.routes.query_names import QueryNames
from duramen.gateway.routes.route import RouteRow
from duramen.gateway.routes.table import ROUTES

BY_OPERATION = {row.operation: row for row in ROUTES}


def row(operation: str) -> RouteRow:
    return BY_OPERATION[operation]


def test_all_that_the_table_has_are_taken() -> None:
    for each in ROUTES:
        names = [parameter.name for parameter in each.parameters if parameter.place == "query"]
        QueryNames(each).check([name.replace("NAME", "x") for name in names])


@pytest.mark.parametrize(
    ("operation", "name", "detail"),
    [
        ("readRecords", "ofset", "there are offset, live, partition, encoding, key, header.NAME, on_truncated, "),
        ("readRecords", "ofset", "; is it offset?"),
        ("readRecords", "headers.from", "is it header.from?"),
        ("readRecords", "stream_id", "there is no such parameter; there are offset"),
        ("listNamespaces", "x", "there are prefix, after, limit"),
        ("findPosition", "Offset", "is it offset?"),
        ("describeWriter", "name", "there are producer"),
        ("writeRecords", "format", "none is taken here"),
        ("followStream", "from", "none is taken here"),
        ("truncateStream", "before", "none is taken here"),
        ("openSession", "x", "none is taken here"),
    ],
)  # fmt: skip
def test_routes_of_ours_refuse_what_they_do_not_know(operation: str, name: str, detail: str) -> None:
    with pytest.raises(ProblemError) as caught:
        QueryNames(row(operation)).check(["offset", name] if operation == "readRecords" else [name])
    assert (caught.value.status, caught.value.code) == (400, "bad-request")
    assert caught.value.detail.startswith(f"{name}: ")
    assert detail in caught.value.detail
    assert "bad-request" in row(operation).all_errors


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("ofset", "offset"), ("offsett", "offset"), ("offest", "offset"), ("Offset", "offset"), ("0ffset", "offset"),
        ("formt", "format"), ("LIVE", "live"), ("lve", "live"), ("live_", "live"), ("on-truncated", "on_truncated"),
        ("KEY", "key"), ("headers.a", "header.a"), ("Header.a.b", "header.a.b"), ("ncoding", "encoding"),
    ],
)  # fmt: skip
def test_streams_refuse_what_is_one_edit_away(name: str, meant: str) -> None:
    with pytest.raises(ProblemError, match=rf"^{name}: .*; is it {meant}\?$"):
        QueryNames(row("readStream")).check([name])


@pytest.mark.parametrize("name", ["foo", "_", "", "ts", "cb", "keys", "ke", "timeout", "off", "x.y", "header", "a" * 9])
def test_streams_let_clients_bring_their_own(name: str) -> None:
    QueryNames(row("readStream")).check([name])
    QueryNames(row("createStream")).check([name, "ofset"])


def test_other_apis_and_probes_are_as_they_were() -> None:
    for operation in ("listTopicsV2", "listTopicsV3", "health", "metrics"):
        QueryNames(row(operation)).check(["x", "ofset"])


def test_a_long_name_is_cut() -> None:
    with pytest.raises(ProblemError) as caught:
        QueryNames(row("readRecords")).check([f"headers.{'x' * 5000}"])
    assert len(caught.value.detail) < 400
