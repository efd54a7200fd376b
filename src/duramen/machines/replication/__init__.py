"""Replication of a partition: what its leader decides, and what a follower makes of its leader's answers."""
