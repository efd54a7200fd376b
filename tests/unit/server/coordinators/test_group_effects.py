"""What group machines ask for outside of their log, as far as the node's log has it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from duramen.machines.group.consumer.commands import MemberChange
from duramen.server.coordinators.group_effects import SHOWN_CHARACTERS, GroupEffects


def reported(effect: Any) -> list[tuple[str, dict[str, Any]]]:
    lines: list[tuple[str, dict[str, Any]]] = []
    context: Any = SimpleNamespace(report=lambda event, **fields: lines.append((event, fields)))
    host: Any = None
    GroupEffects(context).carry_out(host, effect)
    return lines


def test_a_members_change_is_a_line_with_what_there_is_of_it() -> None:
    joined = MemberChange("group-member-joined", "g", "m", "")
    assert reported(joined) == [("group-member-joined", {"group": "g", "member": "m"})]
    removed = MemberChange("group-member-removed", "g", "m", "i", "slow")
    fields = {"group": "g", "member": "m", "instance": "i", "cause": "slow"}
    assert reported(removed) == [("group-member-removed", fields)]


def test_long_ids_do_not_make_long_lines() -> None:
    ((_, fields),) = reported(MemberChange("group-member-left", "g" * 30_000, "m" * 30_000, "i" * 30_000))
    assert {len(value) for value in fields.values()} == {SHOWN_CHARACTERS}


def test_other_effects_are_refused() -> None:
    with pytest.raises(TypeError, match="not an effect"):
        reported(object())
