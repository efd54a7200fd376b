"""The host of a state machine: runs it behind one partition, writes what it decides, replays it at a start."""
