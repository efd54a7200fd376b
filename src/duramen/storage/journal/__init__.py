"""The write-ahead journal that all partitions of a log directory share: group commit, parts, reading it back."""
