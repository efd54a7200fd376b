"""Decisions, pure: replication, metadata and groups as state machines. Time is an argument, effects are values."""
