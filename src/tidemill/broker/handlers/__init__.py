"""One module an API, called with a request context and a request."""
