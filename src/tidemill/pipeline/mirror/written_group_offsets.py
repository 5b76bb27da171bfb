"""The positions of groups that a mirror has written in the target, also before it was started again.

A position in the target that the mirror has written follows the source back as well. Any other is one of the
group itself, which has read in the target, and is left. The file in the checkpoint of the source
(``docs/formats/group-positions.md``)::

    {"version": 1, "groups": {"readers": {"orders": {"0": [120], "1": [98, 103]}}}}

A position that is to be written is stored before, after the one that it replaces: the target has one of both
after a crash.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Final

from tidemill.log.system_files import SystemFiles
from tidemill.model.errors import ConfigError
from tidemill.model.types import TopicPartition

POSITIONS_FILE: Final = "tidemill-group-positions.json"
VERSION: Final = 1
ABSENT_MAX: Final = 360
"""So many times in a row a group is not listed at the source before its positions are forgotten: an hour. A
coordinator that is loading lists none."""

Written = dict[TopicPartition, tuple[int, ...]]
"""The offset that was written last. The last of two offsets may not be written yet."""


class WrittenPositions:
    """The positions by group. For one thread. Its methods raise OSError."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._files = SystemFiles()
        self._groups: dict[str, Written] = self._read()
        self._absent: Counter[str] = Counter()

    def of(self, group: str) -> Mapping[TopicPartition, Sequence[int]]:
        """Returns the offsets that the mirror may have written for a group, by partition of the target."""
        return self._groups.get(group, {})

    def store_intended(
        self,
        commits: Mapping[str, Mapping[TopicPartition, int]],
        existing: Mapping[str, Mapping[TopicPartition, int]],
    ) -> None:
        """Stores what is to be committed, before it is. ``existing`` has the positions in the target."""
        if not commits:
            return
        for group, offsets in commits.items():
            known = self._groups.setdefault(group, {})
            for item, offset in offsets.items():
                now = existing[group].get(item)
                known[item] = (now, offset) if now is not None and now in known.get(item, ()) else (offset,)
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._files.replace(str(self._path), encode_positions(self._groups))

    def note(self, group: str, items: Collection[TopicPartition], *, is_written: bool) -> None:
        """Notes whether the commit that was intended last has succeeded."""
        known = self._groups[group]
        for item in items:
            left = known[item][-1:] if is_written else known[item][:-1]
            if left:
                known[item] = left
            else:
                del known[item]

    def forget_absent(self, listed: Collection[str]) -> None:
        """Forgets the groups that were not listed for long."""
        self._absent = Counter({group: self._absent[group] + 1 for group in self._groups.keys() - listed})
        for group, count in self._absent.items():
            if count >= ABSENT_MAX:
                del self._groups[group]

    def _read(self) -> dict[str, Written]:
        path = str(self._path)
        if not self._files.exists(path):
            return {}
        try:
            return parse_positions(self._files.read(path))
        except (ValueError, KeyError, TypeError, AttributeError) as problem:
            raise ConfigError(
                f"{path} is damaged, or of a later version ({problem!r}): remove it. Positions of groups "
                "that have moved back at the source then stay in the target"
            ) from None


def encode_positions(groups: Mapping[str, Mapping[TopicPartition, Sequence[int]]]) -> bytes:
    """Returns the content of the file."""
    tables: dict[str, dict[str, dict[str, Sequence[int]]]] = {}
    for group, written in groups.items():
        topics = tables.setdefault(group, {})
        for item, offsets in written.items():
            topics.setdefault(item.topic, {})[str(item.partition)] = offsets
    return json.dumps({"version": VERSION, "groups": tables}, separators=(",", ":")).encode()


def parse_positions(data: bytes) -> dict[str, Written]:
    """Parses :func:`encode_positions`. Raises ValueError, KeyError, TypeError or AttributeError."""
    table = json.loads(data)
    if table["version"] != VERSION:
        raise ValueError(f"version {table['version']!r}")
    return {
        group: {
            TopicPartition(topic, int(number)): tuple(int(offset) for offset in offsets)
            for topic, numbers in topics.items()
            for number, offsets in numbers.items()
        }
        for group, topics in table["groups"].items()
    }
