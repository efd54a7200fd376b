"""Bytes in and out: the event loop, connections, send queues, receive buffers, the ports of the operating system."""
