"""Which topics somebody wanted to be deleted: promise ``deletion``.

Whoever deletes by id, or marks a topic in the store, means that topic, and none that is made under its name
meanwhile. Whoever deletes by name means whichever has the name.
"""

from __future__ import annotations

ADMIN_MARK = b"an administrator"
"""The data of a mark in the store that no controller wrote."""


class AskedDeletions:
    """The ids of topics that are to be deleted, and names of which any may be."""

    def __init__(self) -> None:
        self._ids: set[bytes] = set()
        self._names: set[str] = set()

    def by_id(self, topic_id: bytes) -> None:
        """The topic of this id is to be deleted."""
        self._ids.add(topic_id)

    def by_name(self, topic: str) -> None:
        """Whichever topic has this name is to be deleted."""
        self._names.add(topic)

    def is_asked(self, topic: str, topic_id: bytes) -> bool:
        """Whether somebody wanted the deletion of a topic."""
        return topic_id in self._ids or topic in self._names
