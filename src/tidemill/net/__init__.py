"""Sockets: framed connections, sending ranges of files."""
