"""The transactional ids of the sink: prefix, query, worker process and slot.

Two attempts never share an id, so that InitProducerId of one never aborts the finished work of another. An
id is used again for a later batch only, when its last transaction has ended: a coordinator keeps a state for
each id, for a week by default.
"""

from __future__ import annotations

import os
import re
import uuid

_worker = ""
_process = 0
_used: dict[str, dict[str, int]] = {}
"""By the prefix of a query: the last batch of each id of this process."""


def prefix_of(prefix: str, query: str) -> str:
    """Returns what all ids of a query begin with."""
    return f"{prefix}-{query}-"


def pattern_of(prefix: str, query: str) -> str:
    """Returns the regular expression (RE2) of all ids of a query."""
    return re.escape(prefix_of(prefix, query)) + ".*"


def unused_id(prefix: str, query: str, batch: int) -> str:
    """Returns an id that no other attempt uses, and that this process has used for earlier batches only."""
    global _worker, _process, _used
    if _process != os.getpid():
        # Spark forks its workers from one process.
        _worker, _process, _used = uuid.uuid4().hex[:16], os.getpid(), {}
    start = prefix_of(prefix, query)
    used = _used.setdefault(start, {})
    name = next((one for one, last in used.items() if last < batch), f"{start}{_worker}-{len(used)}")
    used[name] = batch
    return name
