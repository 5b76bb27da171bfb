"""The names of mirrored topics in the target cluster: the same ones, or with the alias of the source.

With prefixes, a topic ``orders`` of the source ``east`` is ``east.orders`` in the target. A topic that came
from the target, over any clusters, is not mirrored back: its name has the alias of the target in front.

Source: KIP-382, ``DefaultReplicationPolicy`` and ``isCycle``.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import NamedTuple

from tidemill.model.errors import ConfigError

SEPARATOR = "."


class TargetNames(NamedTuple):
    """The naming of one source. ``prefix`` is empty for the same names."""

    prefix: str = ""
    target_alias: str = ""

    def target_of(self, topic: str) -> str:
        """Returns the name in the target of a topic of the source."""
        return self.prefix + topic

    def is_loop(self, topic: str) -> bool:
        """Whether a topic of the source came from the target."""
        return bool(self.prefix) and self.target_alias in topic.split(SEPARATOR)[:-1]


def prefixed_names(source_alias: str, target_alias: str) -> TargetNames:
    """Returns the naming with prefixes."""
    return TargetNames(source_alias + SEPARATOR, target_alias)


class ClaimedNames:
    """The source of each mirror with the same offsets in a job: one mirror cannot have the offsets of two.

    Threads may share it.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._aliases: dict[str, str] = {}

    def claim(self, alias: str, names: Iterable[str]) -> None:
        """Notes the topics of the target that a source has. Raises ConfigError if another source has one."""
        with self._lock:
            others = {
                name: other for name in names if (other := self._aliases.setdefault(name, alias)) != alias
            }
        if others:
            raise ConfigError(
                f"the sources {alias} and {', '.join(sorted(set(others.values())))} both have "
                f"{', '.join(sorted(others))}, and a mirror has the offsets of one: mirror with prefixes "
                "(--prefixed) or new offsets (--offsets new), or deny the topic and mirror it in another job"
            )
