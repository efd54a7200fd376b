"""Replication of a partition: what its leader decides (later: its followers, its in-sync replicas)."""
