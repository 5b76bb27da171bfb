"""Which settings are secrets, by their names, and what is shown in their place."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

HIDDEN = "(hidden)"

SECRET_NAME = re.compile(r"password|passphrase|secret|jaas|(^|[._])(key|token)$", re.IGNORECASE)
"""Settings whose value is a secret. ``ssl.keystore.key`` is one, ``ssl.key.location`` is a path."""

SECRET_LENGTH_MIN = 4
"""A shorter secret is not looked for in texts: its characters would be hidden inside ordinary words."""


def is_secret(name: str) -> bool:
    """Whether the value of the setting ``name`` is never shown."""
    return SECRET_NAME.search(name) is not None


def shown(name: str, value: Any) -> str:
    """The value of a setting for messages: as Python writes it, or ``(hidden)``."""
    return HIDDEN if is_secret(name) else repr(value)


def without(secrets: Iterable[str | None], text: str) -> str:
    """``text`` with ``(hidden)`` wherever it holds one of ``secrets``: for texts that others have written."""
    for secret in sorted(filter(None, secrets), key=len, reverse=True):
        if len(secret) >= SECRET_LENGTH_MIN:
            text = text.replace(secret, HIDDEN)
    return text


class Settings(dict[str, str]):
    """Settings by name, whose secrets stay out of ``repr`` and ``str``. Can be pickled, secrets included."""

    __slots__ = ()

    def __repr__(self) -> str:
        return repr({name: HIDDEN if is_secret(name) else value for name, value in self.items()})

    __str__ = __repr__

    @classmethod
    def of(cls, settings: Mapping[str, str]) -> Settings:
        """A copy that hides its secrets."""
        return cls(settings)
