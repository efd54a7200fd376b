"""Confluent's REST API, versions 2 and 3, as its public reference describes it."""
