"""The declaration of an API by its handler: key, versions, function."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from tidemill.wire.apis import ApiKey


class HandledApi(NamedTuple):
    """An API and its versions, from ``first`` to ``last``, with the function that handles its requests.

    ``handle`` takes (broker, context, request) and returns the response, or is a coroutine function.
    """

    key: ApiKey
    first: int
    last: int
    handle: Callable[..., Any]
    to_controller: bool = False
    """Whether only the controller handles its requests. Other brokers forward them to the controller."""

    def has_version(self, version: int) -> bool:
        """Whether the handler accepts requests of ``version``."""
        return self.first <= version <= self.last
