"""Coordinators of groups and sinks, the relocation of staged records, and producer ids."""
