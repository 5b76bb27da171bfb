"""Decides on topics, placement and configuration."""
