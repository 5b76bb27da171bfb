"""The transactional ids of the sink: ``PREFIX-QUERY-WORKER-SLOT``.

``WORKER`` has 16 hexadecimal digits and identifies a Python process; ``SLOT`` counts its ids from 0 on. Two
attempts never share an id, so that InitProducerId of one never aborts the finished work of another. An
id is used again for a later batch only, when its last transaction has ended: a coordinator keeps a state for
each id, for a week by default.
"""

from __future__ import annotations

import os
import re
import uuid
from typing import Final

WORKER_DIGITS: Final = 16

_worker = ""
_process = 0
_used: dict[str, dict[str, int]] = {}
"""By the prefix of a query: the last batch of each id of this process."""


def pattern_of(prefix: str, query: str) -> str:
    """Returns the regular expression (RE2) of all ids of a query.

    It does not match those of a query whose name only begins with this one's: another driver decides on them.
    """
    return f"{re.escape(_start_of(prefix, query))}[0-9a-f]{{{WORKER_DIGITS}}}-[0-9]+"


def unused_id(prefix: str, query: str, batch: int) -> str:
    """Returns an id that no other attempt uses, and that this process has used for earlier batches only."""
    global _worker, _process, _used
    if _process != os.getpid():
        # Spark forks its workers from one process.
        _worker, _process, _used = uuid.uuid4().hex[:WORKER_DIGITS], os.getpid(), {}
    start = _start_of(prefix, query)
    used = _used.setdefault(start, {})
    name = next((one for one, last in used.items() if last < batch), f"{start}{_worker}-{len(used)}")
    used[name] = batch
    return name


def _start_of(prefix: str, query: str) -> str:
    return f"{prefix}-{query}-"
