"""Fixtures that the simulator's tests use from other layers: the behaviour of every coordination store."""

from __future__ import annotations

import sys
from pathlib import Path

for layer in ("coordination",):
    path = str(Path(__file__).parent.parent / layer)
    if path not in sys.path:
        sys.path.append(path)
