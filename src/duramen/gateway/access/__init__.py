"""Who asks, and what they may: logins, permissions, and the certificates of the listener."""
