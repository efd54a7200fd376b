"""Checks and repairs of a log directory that no node uses: verify, inspect, salvage, quarantine."""
