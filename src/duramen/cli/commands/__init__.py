"""One module per command that talks to a node, and `serve`."""
