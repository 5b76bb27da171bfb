"""The transactional ids of the sink: ``PREFIX-QUERY-WORKER-SLOT``.

``WORKER`` has 16 hexadecimal digits and identifies a Python process; ``SLOT`` counts its ids from 0 on. Two
attempts never share an id, so that InitProducerId of one never aborts the finished work of another. An
id is used again for a later batch only, when its last transaction has ended: a coordinator keeps a state for
each id, for a week by default.
"""

from __future__ import annotations

import re
import uuid
from typing import Final

from tidemill.pipeline.process_local import ProcessLocal

WORKER_DIGITS: Final = 16


class Worker:
    """A Python process with its ids."""

    def __init__(self) -> None:
        self.name = uuid.uuid4().hex[:WORKER_DIGITS]
        self.used: dict[str, dict[str, int]] = {}
        """By the prefix of a query: the last batch of each id."""


_worker = ProcessLocal(Worker)


def pattern_of(prefix: str, query: str) -> str:
    """Returns the regular expression (RE2) of all ids of a query.

    It does not match those of a query whose name only begins with this one's: another driver decides on them.
    """
    return f"{re.escape(_start_of(prefix, query))}[0-9a-f]{{{WORKER_DIGITS}}}-[0-9]+"


def unused_id(prefix: str, query: str, batch: int) -> str:
    """Returns an id that no other attempt uses, and that this process has used for earlier batches only."""
    worker, start = _worker.value, _start_of(prefix, query)
    used = worker.used.setdefault(start, {})
    name = next((one for one, last in used.items() if last < batch), f"{start}{worker.name}-{len(used)}")
    used[name] = batch
    return name


def _start_of(prefix: str, query: str) -> str:
    return f"{prefix}-{query}-"
