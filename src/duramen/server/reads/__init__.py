"""What readers hold and wait for: cold reads, leases on segments, fetch sessions."""
