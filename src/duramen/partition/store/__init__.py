"""All partitions of this process: the commit cycle, maintenance, and partitions created and deleted."""
