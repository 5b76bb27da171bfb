"""The context manager of everything that tests start."""

from __future__ import annotations

from types import TracebackType
from typing import Self


class Started:
    """Starts with a ``with`` statement and closes at its end, and also when the start fails."""

    def start(self) -> Self:
        """Starts, and waits until it serves."""
        raise NotImplementedError

    def close(self) -> None:
        """Ends all processes, and deletes the data."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        try:
            return self.start()
        except BaseException:
            self.close()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
