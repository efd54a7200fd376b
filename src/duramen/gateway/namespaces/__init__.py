"""Requests on namespaces."""
