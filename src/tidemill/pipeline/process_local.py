"""Values of one process: PySpark forks its Python workers from a process that may have values of its own."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Generic, TypeVar

ValueT = TypeVar("ValueT")


class ProcessLocal(Generic[ValueT]):
    """A value that each process makes at its first use: a forked process does not use the parent's."""

    def __init__(self, make: Callable[[], ValueT]) -> None:
        self._make = make
        self._process = 0

    @property
    def value(self) -> ValueT:
        """The value of this process."""
        if self._process != os.getpid():
            self._value, self._process = self._make(), os.getpid()
        return self._value
