"""The gateway: streams over HTTP for `curl`, browsers and programs in any language, in a process of its own.

It is a client of the cluster and keeps nothing that matters: several may stand side by side, and any may be killed.
What decides (paths, positions, JSON, expiry, SSE frames, who may ask) is in modules without sockets; `streams` does the
calls of a stream on the asynchronous client, and `app` is the thin ASGI shell over both. It needs the extra
`duramen[http]`.
"""
