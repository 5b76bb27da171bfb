"""New topics for tests, deleted afterwards."""

from __future__ import annotations

import contextlib
import itertools
import re

from tidemill.client import Admin
from tidemill.model.errors import KafkaError
from tidemill.testing.broker import setting_text

_NUMBERS = itertools.count(1)
NAME_LENGTH_MAX = 200


class TopicMaker:
    """``make(partitions=1, **config)`` creates a topic whose name starts with the name of the test."""

    def __init__(self, bootstrap: str, test_name: str = "topic") -> None:
        self._admin = Admin(bootstrap)
        self._stem = re.sub(r"[^A-Za-z0-9._-]+", "-", test_name).strip("-")[:NAME_LENGTH_MAX] or "topic"
        self._made: list[str] = []

    def make(self, partitions: int = 1, **config: object) -> str:
        """Creates a topic. Returns its name. Topic keys are given with underscores: ``retention_ms=-1``."""
        name = f"{self._stem}-{next(_NUMBERS)}"
        configs = {key.replace("_", "."): setting_text(value) for key, value in config.items()}
        self._admin.create_topic(name, partitions, 1, configs=configs)
        self._made.append(name)
        return name

    def close(self) -> None:
        """Deletes the topics that were created, if they still exist."""
        with contextlib.suppress(KafkaError, OSError):
            if self._made:
                self._admin.delete_topics(self._made)
        self._admin.close()
