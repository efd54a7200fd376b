"""Requests and parsed responses of the client side: pure, without sockets."""
