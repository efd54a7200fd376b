"""Copies of partitions between brokers: fetched from their leaders, and counted in sync. Loaded where there are any."""
