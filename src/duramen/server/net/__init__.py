"""Bytes in and out: the event loop, connections, send queues, receive buffers, and the ports of the operating system."""
