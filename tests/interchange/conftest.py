"""Adds the helpers of ``tests/broker`` to the path: copies to mirrors."""

from __future__ import annotations

import sys
from pathlib import Path

path = str(Path(__file__).parent.parent / "broker")
if path not in sys.path:
    sys.path.append(path)
