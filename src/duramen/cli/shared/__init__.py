"""What commands share: options and clients, output, positions, retries."""
