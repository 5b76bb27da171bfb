"""Recognises secret settings by their names, and hides their values."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

HIDDEN = "(hidden)"

SECRET_NAME = re.compile(r"password|passphrase|secret|jaas|(^|[._])(key|token)$", re.IGNORECASE)
"""Matches settings whose value is a secret: ``ssl.keystore.key``, but not ``ssl.key.location``, a path."""

SECRET_LENGTH_MIN = 4
"""Shorter secrets are not searched for in texts: they would match inside ordinary words."""


def is_secret(name: str) -> bool:
    """Returns whether the value of the setting ``name`` is never shown."""
    return SECRET_NAME.search(name) is not None


def shown(name: str, value: Any) -> str:
    """Returns the value of a setting for messages: its ``repr``, or ``(hidden)``."""
    return HIDDEN if is_secret(name) else repr(value)


def without(secrets: Iterable[str | None], text: str) -> str:
    """Returns ``text`` with every occurrence of ``secrets`` replaced by ``(hidden)``, for texts of others."""
    for secret in sorted(filter(None, secrets), key=len, reverse=True):
        if len(secret) >= SECRET_LENGTH_MIN:
            text = text.replace(secret, HIDDEN)
    return text


class Settings(dict[str, str]):
    """Settings by name, whose ``repr`` and ``str`` hide secrets. Pickling includes the secrets."""

    __slots__ = ()

    def __repr__(self) -> str:
        return repr({name: HIDDEN if is_secret(name) else value for name, value in self.items()})

    __str__ = __repr__
