"""The stores that a declaration may name and those that there are."""

from __future__ import annotations

from duramen.pipelines.model import declaration
from duramen.pipelines.run import stores


def test_every_store_that_a_declaration_may_name_has_a_class() -> None:
    assert tuple(stores.STORES) == declaration.STORES
