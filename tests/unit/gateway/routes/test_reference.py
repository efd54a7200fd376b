"""The page and the description of the routes are those of the table, and the table knows what is refused."""

from __future__ import annotations

import re
from pathlib import Path

from duramen.gateway.routes.errors import ERRORS
from duramen.gateway.routes.openapi import openapi
from duramen.gateway.routes.reference import page
from duramen.gateway.routes.table import ROUTES

ROOT = Path(__file__).parents[4]


def test_page_is_current() -> None:
    text = (ROOT / "docs/http.md").read_text()
    assert text == page(), "run: python -m duramen.gateway.routes.reference > docs/http.md"


def test_every_code_that_is_raised_is_declared() -> None:
    raised = {
        (int(status), code)
        for path in (ROOT / "src/duramen/gateway").rglob("*.py")
        for status, code in re.findall(r'\(\s*(\d{3}),\s*"([a-z-]+)"', path.read_text())
        if path.parent.name != "routes"
    }
    assert {(ERRORS[code][0], code) for _, code in raised} == raised
    named = {code for row in ROUTES for code in row.all_errors} | {"not-found", "no-such-method"}
    assert named == set(ERRORS)


def test_every_route_is_described() -> None:
    paths = openapi(ROUTES)["paths"]
    assert {(row.method.lower(), row.path) for row in ROUTES} == {(m, path) for path in paths for m in paths[path]}
    assert len({row.operation for row in ROUTES}) == len(ROUTES)
