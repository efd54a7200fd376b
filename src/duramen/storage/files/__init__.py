"""Files below any format: the Disk port, atomic replacement, syncs, disk-full errors, the ballast."""
