"""When the expressions of a group are resolved: for a new one, for new topics, now and then; never too often."""

from __future__ import annotations

from enum import Enum
from typing import Final

from duramen.machines.contract import Outcome
from duramen.machines.group.consumer import records
from duramen.machines.group.consumer.commands import ExpressionsResolved, ResolveExpressions
from duramen.machines.group.consumer.groups import ConsumerGroups
from duramen.machines.group.consumer.state import ConsumerGroup, ConsumerMember, ResolvedExpression
from duramen.machines.group.expressions import check_count, compile_expression

PAUSE_MS: Final = 10_000
"""At least, from one time to the next."""


class ExpressionChange(Enum):
    """What a heartbeat changed of its member's expression."""

    NONE = "none"
    UNRESOLVED = "unresolved"
    """Its topics are not known yet: the group rebalances when they are."""
    RESOLVED = "resolved"
    """Its topics are known, or it has none any more: the group rebalances."""


def change(group: ConsumerGroup, before: ConsumerMember, after: ConsumerMember) -> ExpressionChange:
    """INVALID_REGULAR_EXPRESSION for one that is new to the group and no expression."""
    if before.expression == after.expression:
        return ExpressionChange.NONE
    text = after.expression
    if not text:
        return ExpressionChange.RESOLVED if before.expression else ExpressionChange.UNRESOLVED
    if text not in group.expression_counts:
        check_count(group.expression_counts, text)
        compile_expression(text)
    return ExpressionChange.RESOLVED if text in group.expressions else ExpressionChange.UNRESOLVED


def resolve_if_due(
    groups: ConsumerGroups,
    group: ConsumerGroup,
    before: ConsumerMember | None,
    after: ConsumerMember,
    caller: object,
    now: int,
    out: Outcome,
) -> None:
    """Ask for it as if `after` stood in the place of `before`."""
    wanted = dict.fromkeys(group.expression_counts)
    if before is not None and before.expression and group.expression_counts.get(before.expression) == 1:
        wanted.pop(before.expression, None)
    if after.expression:
        wanted[after.expression] = None
    if not wanted or group.id in groups.resolving:
        return
    known = next(iter(group.expressions.values()), None)
    last = groups.asked_to_resolve.get(group.id) if known is None else known.timestamp
    # A clock that was set back must not keep it from being done for ever.
    if last is not None and 0 <= now - last <= PAUSE_MS:
        return
    if (
        known is not None
        and all(text in group.expressions for text in wanted)
        and known.version >= groups.topics.appeared_at
        and 0 <= now - known.timestamp <= groups.settings.consumer_regex_refresh_interval_ms
    ):
        return
    groups.asked_to_resolve[group.id] = now
    groups.resolving.add(group.id)
    out.effects.append(ResolveExpressions(group.id, tuple(sorted(wanted)), caller))


def resolved(groups: ConsumerGroups, command: ExpressionsResolved, now: int, out: Outcome) -> None:
    """The group's epoch rises where they match other topics than before."""
    groups.resolving.discard(command.group_id)
    group = groups.groups.get(command.group_id)
    if group is None or command.topics is None:
        return
    expressions = dict(group.expressions)
    has_changed = False
    for text, names in command.topics.items():
        if text not in group.expression_counts:
            continue
        found = ResolvedExpression(frozenset(names), command.version, now)
        known = expressions.get(text)
        has_changed |= found.topics != (known.topics if known is not None else frozenset())
        expressions[text] = found
        out.records.append(records.expression(group.id, text, found))
    topics = set(group.name_counts)
    for each in expressions.values():
        topics |= each.topics
    metadata_hash = groups.topics.hash_of(topics)
    if has_changed or metadata_hash != group.metadata_hash:
        raise_epoch(groups, group, metadata_hash, out)


def raise_epoch(groups: ConsumerGroups, group: ConsumerGroup, metadata_hash: int, out: Outcome) -> int:
    """What the members shall have is to be computed again."""
    epoch = group.epoch + 1
    out.records.append(records.group_epoch(group.id, epoch, metadata_hash))
    groups.rebalances += 1
    return epoch
