"""Runs first in each Python process of a Spark test, from ``PYTHONPATH``."""

from __future__ import annotations

import os
import sys

# Spark puts a zip file with PySpark first, whose modules each process compiles again: this takes a second.
sys.path.sort(key=lambda place: place.endswith(".zip"))

if "SINK_KILL" in os.environ:
    import sink_kill_hook

    sink_kill_hook.install(os.environ["SINK_KILL"])
