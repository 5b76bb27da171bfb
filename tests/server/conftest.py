"""What the tests of whole brokers borrow from those of clients: a connection that speaks every version."""

from __future__ import annotations

import sys
from pathlib import Path

path = str(Path(__file__).parent.parent / "clients")
if path not in sys.path:
    sys.path.append(path)
