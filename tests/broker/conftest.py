"""What the broker's tests borrow from those of other layers: random messages of every API."""

from __future__ import annotations

import sys
from pathlib import Path

WIRE = str(Path(__file__).parent.parent / "wire")

if WIRE not in sys.path:
    sys.path.append(WIRE)
