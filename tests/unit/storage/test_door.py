"""What other packages may use of storage: each name resolves, and is listed for mypy as it is for the interpreter."""

from __future__ import annotations

import ast
from pathlib import Path

from duramen import storage


def test_every_name_of_the_door_resolves() -> None:
    for module, names in storage._PLACES.items():
        for name in names:
            assert getattr(storage, name) is getattr(__import__(f"duramen.storage.{module}", fromlist=[name]), name)


def test_the_types_of_the_door_are_those_that_it_hands_out() -> None:
    tree = ast.parse(Path(str(storage.__file__)).read_text())
    (block,) = [node for node in tree.body if isinstance(node, ast.If)]
    imported = {
        (str(each.module).removeprefix("duramen.storage."), alias.name, alias.asname)
        for each in block.body
        if isinstance(each, ast.ImportFrom)
        for alias in each.names
    }
    assert imported == {(module, name, name) for module, names in storage._PLACES.items() for name in names}
