"""What the simulator's tests borrow from those of other layers: what every coordination store does."""

from __future__ import annotations

import sys
from pathlib import Path

for layer in ("coordination",):
    path = str(Path(__file__).parent.parent / layer)
    if path not in sys.path:
        sys.path.append(path)
