"""A simulated machine room: disks, network, virtual time, executors and nodes."""
