"""What the broker's tests borrow from those of other layers: random messages, followers, whole clusters."""

from __future__ import annotations

import sys
from pathlib import Path

for layer in ("wire", "replication", "server"):
    path = str(Path(__file__).parent.parent / layer)
    if path not in sys.path:
        sys.path.append(path)
