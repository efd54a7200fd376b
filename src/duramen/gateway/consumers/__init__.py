"""Consumers of version 2 of Confluent's REST API: what reads for a client that keeps no position of its own."""
