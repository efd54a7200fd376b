"""The client on the Network port: callbacks on one loop, nothing blocks."""
