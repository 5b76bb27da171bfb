"""The requested topic deletions: promise ``deletion``.

A deletion by id, or by a mark in the store, applies to that topic, and to none created later under its name.
A deletion by name applies to any topic of the name.
"""

from __future__ import annotations

ADMIN_MARK = b"an administrator"
"""The data of a mark in the store that no controller wrote."""


class RequestedDeletions:
    """The ids of topics to be deleted, and names of which any topic may be deleted."""

    def __init__(self) -> None:
        self._ids: set[bytes] = set()
        self._names: set[str] = set()

    def by_id(self, topic_id: bytes) -> None:
        """The topic of this id is to be deleted."""
        self._ids.add(topic_id)

    def by_name(self, topic: str) -> None:
        """Any topic of this name is to be deleted."""
        self._names.add(topic)

    def is_asked(self, topic: str, topic_id: bytes) -> bool:
        """Whether the deletion of a topic was requested."""
        return topic_id in self._ids or topic in self._names
