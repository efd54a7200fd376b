"""From frames to requests: accepting connections, decoding, authorizing, and the services that a handler may use."""
