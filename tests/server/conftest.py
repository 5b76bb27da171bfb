"""Adds the helpers of ``tests/clients`` to the path: a connection that supports every version of an API."""

from __future__ import annotations

import sys
from pathlib import Path

path = str(Path(__file__).parent.parent / "clients")
if path not in sys.path:
    sys.path.append(path)
