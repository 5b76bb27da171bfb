"""Listeners, connections in, limits, and the process around a broker."""
