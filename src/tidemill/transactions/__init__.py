"""Idempotence and transactions."""
