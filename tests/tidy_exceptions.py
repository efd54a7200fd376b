"""What does not keep a rule of test_tidy.py yet. The lists only shrink: an entry that keeps its rule fails a test."""

from __future__ import annotations

CIRCLES: dict[str, int] = {}
"""Package → how many of its modules import each other in circles, type-only imports included."""

DECLARING_BASES: set[str] = set()
"""Base classes that declare attributes which a subclass sets."""

SPREAD_CLASSES: set[str] = {
    "duramen.pipelines.run.queries.Queries",
}
"""Classes that stand in two files: the base, which has no other purpose."""

GERUNDS: set[str] = set()
"""Modules that are named by what is done."""

REPEATED_CLASSES: set[str] = {
    "Record",
    "Topic",
}
"""Class names that stand for several classes."""

UNNAMED_TESTS: set[str] = {
    "test_damaged_copies",
    "test_damaged_swaps",
    "test_door",
    "test_foreign_directories",
    "test_forgotten_segments",
    "test_lost_directories",
    "test_lost_ids",
    "test_missing_bytes",
    "test_repair_command",
    "test_strays",
    "test_unreadable_files",
}
"""Unit tests that are not named after a module."""

TESTS_THAT_LOOK_UP: set[str] = {
    "test_broker_lost_metadata",
    "test_broker_lost_numbers",
    "test_broker_metadata_snapshots",
    "test_broker_no_descriptors",
    "test_broker_rebuilt_metadata",
    "test_cleaner_over_time",
    "test_log_interplay",
    "test_brokers",
    "test_in_sync",
    "test_machine_lives",
    "test_machine_metadata",
    "test_machine_model",
    "test_membership",
    "test_membership_static",
    "test_offsets",
    "test_pending_offsets",
    "test_reprocess_other_shapes",
    "test_session",
}
"""Unit tests that import a package above theirs."""

SETTINGS_BY_STRING: set[str] = set()
"""Settings that are read by getattr."""

PRIVATE_STRINGS: set[str] = {
    "duramen.pipelines.run.failures _cause",
}
"""Private names in strings."""

SIM_INSIDE_STORAGE: set[str] = set()
"""Modules of the simulator that reach into the storage without need."""
