"""The shell around the engine: sockets, the dispatch table, handlers, coordinators, metrics."""
