"""Instances, name mapping, shares."""
