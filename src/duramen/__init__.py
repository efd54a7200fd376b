"""Duramen: a distributed log that speaks the Apache Kafka protocol."""

from __future__ import annotations

__version__ = "0.1.0"
