"""Definitions that every layer shares: types, error codes, the configuration table, ports."""
