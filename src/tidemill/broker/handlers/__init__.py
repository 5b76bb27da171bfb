"""One module per API, called with a request context and a request."""
