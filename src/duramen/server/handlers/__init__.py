"""One module per API (or family of APIs): a decoded request in, a reply now or later."""
