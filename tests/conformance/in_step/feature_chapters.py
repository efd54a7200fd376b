"""Chapters of features: levels go down and up, and what requests are answered meanwhile."""

from __future__ import annotations

import time

from tests.conformance.in_step.chapter import AGAIN_S, PAUSE_S
from tests.conformance.in_step.group_chapters import DESCRIBE, HEARTBEAT
from tests.conformance.in_step.side import Spec
from tests.conformance.in_step.transaction_chapters import Transactions

API_VERSIONS, UPDATE = 18, 57
HIGHEST = {"transaction.version": 2, "group.version": 1}
NAMES = ("transaction.version", "transaction.version", "group.version", "metadata.version", "nonsense", "")


class Features(Transactions):
    """See the module."""

    def step(self) -> None:
        if self.maybe(0.35):
            self.random_update()
        elif self.maybe(0.4):
            self.random_heartbeat()
        else:
            super().step()

    def end(self) -> None:
        """All levels as they were."""
        for name, level in HIGHEST.items():
            for side in self.sides:
                side.ask(
                    UPDATE, 1, {"feature_updates": [{"feature": name, "max_version_level": level, "upgrade_type": 1}]}
                )
            self._await_level(name, level)

    def random_update(self) -> None:
        random = self.random
        version = random.randint(0, 2)
        names = list({random.choice(NAMES): None for _ in range(random.choices([0, 1, 2], [0.5, 10, 2])[0])})
        updates: list[Spec] = []
        for name in names:
            level = random.choices([0, 1, 2, 3, -1, 30], [6, 8, 6, 1, 1, 1])[0]
            kind = random.choices([1, 2, 3, 0, 4], [8, 6, 3, 0.5, 0.5])[0]
            if name == "metadata.version" and level > 3:
                level = 1
            updates.append(
                {"feature": name, "max_version_level": level, "upgrade_type": kind, "allow_downgrade": self.maybe(0.5)}
            )
        validates = version > 0 and self.maybe(0.3)
        answers = self.ask(
            UPDATE, version, {"feature_updates": updates, "validate_only": validates, "timeout_ms": 5_000}
        )
        if not validates and not any(answer.error_code for answer in answers.values()):
            for each in updates:
                self._await_level(each["feature"], each["max_version_level"])

    def _await_level(self, name: str, level: int) -> None:
        """The level is in the metadata; a broker hears of it a moment later."""
        for side in self.sides:
            until = time.monotonic() + AGAIN_S
            while time.monotonic() < until:
                answer, _ = side.ask(API_VERSIONS, 4, {"client_software_name": "s", "client_software_version": "1"})
                known = {each.name: each.max_version_level for each in answer.finalized_features}
                if known.get(name, 0) == level:
                    break
                time.sleep(PAUSE_S)

    def random_heartbeat(self) -> None:
        group = self.a_group()
        if self.maybe(0.2):
            self.ask(DESCRIBE, 1, {"group_ids": [group]})
            return
        spec = {
            "group_id": group,
            "member_id": "m",
            "member_epoch": self.random.choice((0, 0, 0, -1, 1)),
            "rebalance_timeout_ms": 60_000,
            "subscribed_topic_names": [self.own("a")],
            "topic_partitions": [],
        }
        self.ask(HEARTBEAT, 1, spec)
