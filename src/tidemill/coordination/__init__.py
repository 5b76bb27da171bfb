"""The coordination store: the port and its engines."""
