"""The broker process: start and stop, signals, listeners, connection limits, metrics."""
