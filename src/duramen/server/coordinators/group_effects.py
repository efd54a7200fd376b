"""What group machines ask for outside of their log: expressions and large assignments, worked out beside the loop."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final

from duramen.machines.group.assignors import ASSIGNORS
from duramen.machines.group.consumer.commands import (
    ComputeTarget,
    ExpressionsResolved,
    MemberChange,
    ResolveExpressions,
    ResumeHeartbeats,
    TargetComputed,
)
from duramen.machines.group.expressions import resolve
from duramen.partition.host.host import Host
from duramen.server.api.authorizer import Operation, Resource
from duramen.server.coordinators.context import CoordinatorContext

EXPRESSIONS_LANE: Final = "expressions"
ASSIGNMENTS_LANE: Final = "assignments"
SHOWN_CHARACTERS: Final = 200
"""Of ids, in a log line."""


class GroupEffects:
    """Carries them out, and brings the machine what comes of them."""

    def __init__(self, context: CoordinatorContext) -> None:
        self._context = context

    def carry_out(self, host: Host, effect: Any) -> None:
        """One effect of a decision of this host."""
        if isinstance(effect, ResolveExpressions):
            self._resolve(host, effect)
        elif isinstance(effect, ComputeTarget):
            self._compute(host, effect)
        elif isinstance(effect, ResumeHeartbeats):
            for ticket, heartbeat in effect.waiting:
                host.resume(ticket, heartbeat)
        elif isinstance(effect, MemberChange):
            self._report(effect)
        else:
            raise TypeError(f"not an effect of groups: {effect!r}")

    def _resolve(self, host: Host, effect: ResolveExpressions) -> None:
        image = self._context.image
        version, names = image.next_offset, list(image.topics)

        def done(found: dict[str, tuple[str, ...]] | None, error: BaseException | None) -> None:
            if error is not None:
                self._context.report("expressions-not-resolved", group=effect.group_id, error=error)
            elif found is not None:
                found = self._described(found, effect.caller)
            host.submit(ExpressionsResolved(effect.group_id, found, version), _ignore)

        self._submit(EXPRESSIONS_LANE, partial(resolve, effect.expressions, names), done)

    def _described(self, found: dict[str, tuple[str, ...]], caller: Any) -> dict[str, tuple[str, ...]]:
        """Without the topics that the member may not describe."""
        principal, address = caller
        names = {name for matched in found.values() for name in matched}
        hidden = self._context.access.authorizer.denied(
            principal, address, Operation.DESCRIBE, Resource.TOPIC, sorted(names)
        )
        if not hidden:
            return found
        return {text: tuple(name for name in matched if name not in hidden) for text, matched in found.items()}

    def _compute(self, host: Host, effect: ComputeTarget) -> None:
        def done(assignment: Any, error: BaseException | None) -> None:
            if error is not None:
                self._context.report("assignment-failed", group=effect.group_id, error=error)
            host.submit(TargetComputed(effect.group_id, effect.epoch, assignment), _ignore)

        self._submit(ASSIGNMENTS_LANE, partial(ASSIGNORS[effect.assignor], effect.spec, effect.counts), done)

    def _report(self, change: MemberChange) -> None:
        ids = {"group": change.group_id, "member": change.member_id, "instance": change.instance_id}
        fields = {name: value[:SHOWN_CHARACTERS] for name, value in ids.items() if value}
        self._context.report(change.event, **fields, **({"cause": change.cause} if change.cause else {}))

    def _submit(self, lane: str, work: Callable[[], Any], done: Callable[[Any, BaseException | None], None]) -> None:
        self._context.executor.submit(lane, work, done)


def _ignore(_: Any) -> None:
    """The machine has it, or its host has ended: then the next one asks again."""
