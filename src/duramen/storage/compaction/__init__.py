"""Key compaction: which logs are eligible, the map of latest offsets, and segments rewritten without the rest."""
