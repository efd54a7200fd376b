"""Every setting by name, and the answer to a name that does not exist."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from duramen.config.ignored import (
    FOREIGN,
    FOREIGN_PREFIXES,
    INERT_BROKER_SETTINGS,
    REMOVED,
    UNSAFE_PREFIXES,
    UNSAFE_TO_PASS_OVER,
)
from duramen.config.segment_settings import SEGMENT_SETTINGS
from duramen.config.setting import Setting
from duramen.config.suggestions import Nearest
from duramen.config.supported import SERVED_BROKER_SETTINGS
from duramen.config.topic_settings import TOPIC_SETTINGS
from duramen.errors import ConfigError

SETTINGS: Mapping[str, Setting] = {
    s.name: s for s in sorted(SERVED_BROKER_SETTINGS + SEGMENT_SETTINGS + INERT_BROKER_SETTINGS, key=lambda s: s.name)
}
"""Broker settings, served and inert, sorted by name."""

TOPIC: Mapping[str, Setting] = {s.name: s for s in TOPIC_SETTINGS}
"""Topic settings, sorted by name."""

_LISTENER_PREFIX = "listener.name."
_PLUGIN_PREFIXES = ("rlmm.config.", "rsm.config.")


def prefixed_reason(name: str) -> str:
    """Why a key made of a prefix and a plug-in's or listener's own key has no effect; "" when it is no such key."""
    if name.startswith(_PLUGIN_PREFIXES):
        return "there is no remote tier"
    if name.startswith("config.providers."):
        return "Java classes cannot be loaded here"
    if name.startswith(_LISTENER_PREFIX):
        rest = name.removeprefix(_LISTENER_PREFIX).split(".")
        for start in range(1, len(rest)):
            setting = SETTINGS.get(".".join(rest[start:]))
            if setting is not None:
                return setting.inert or "one value serves every listener"
    return ""


def passed_over(name: str) -> str:
    """Why a key of a broker's file that is no setting here may stand there, without effect; "" when it may not.

    It is known from other releases or vendors, and the node is as safe without it as its file says.
    """
    if name in SETTINGS or name.startswith(UNSAFE_PREFIXES):
        return ""
    reason = prefixed_reason(name) or FOREIGN.get(name) or REMOVED.get(name)
    return reason or next((whose for prefix, whose in FOREIGN_PREFIXES.items() if name.startswith(prefix)), "")


def broker_setting(name: str) -> Setting:
    """The broker setting of this name; ConfigError when there is none, with the nearest if one is near."""
    found = SETTINGS.get(name)
    if found is None:
        raise _unknown(name, "broker", "topic" if name in TOPIC else "")
    return found


def topic_setting(name: str) -> Setting:
    """The topic setting of this name; ConfigError when there is none, with the nearest if one is near."""
    found = TOPIC.get(name)
    if found is None:
        raise _unknown(name, "topic", "broker" if name in SETTINGS else "")
    return found


@cache
def _names(scope: str) -> Nearest:
    """Made when somebody first misspells one: it takes as long as a tenth of a start."""
    return Nearest(TOPIC) if scope == "topic" else Nearest([*SETTINGS, *FOREIGN, *REMOVED, *UNSAFE_TO_PASS_OVER])


def _unknown(name: str, scope: str, elsewhere: str) -> ConfigError:
    known = REMOVED.get(name) or UNSAFE_TO_PASS_OVER.get(name)
    if name.startswith(UNSAFE_PREFIXES):
        known = "access control is not served yet; remove it to let everyone in"
    if known:
        return ConfigError(f"unknown {scope} setting {name}: {known}")
    message = f"unknown {scope} setting {name}"
    if elsewhere:
        related = _related(name, elsewhere)
        return ConfigError(f"{message}: it is a setting of a {elsewhere}" + (f"; use {related}" if related else ""))
    nearest = _names(scope).to(name)
    if nearest is None:
        return ConfigError(message)
    aside = "" if nearest in SETTINGS or scope == "topic" else _said_of_foreign(nearest)
    return ConfigError(f"{message}; the nearest is {nearest}{aside}")


def _said_of_foreign(name: str) -> str:
    reason = passed_over(name)
    return f", without effect here ({reason})" if reason else f" ({UNSAFE_TO_PASS_OVER[name]})"


def _related(name: str, scope: str) -> str:
    """The setting of the other scope that means the same."""
    if scope == "topic":
        fallbacks = TOPIC[name].fallbacks
        return fallbacks[0][0] if fallbacks else ""
    for setting in TOPIC.values():
        if any(broker == name for broker, _ in setting.fallbacks):
            return setting.name
    return ""
