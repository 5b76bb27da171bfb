"""What a check of files finds: damage, and what is worth knowing without being any."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from tidemill.model.ports import Files
from tidemill.model.unpacked_limit import UNPACKED_BYTES_MAX

FINDINGS_KEPT: Final = 50
"""Of one directory; the rest is counted only, however much is broken."""


class Finding(NamedTuple):
    """One thing that was found. ``position`` is a byte of the file, -1 where it is about all of it."""

    damage: bool
    path: str
    position: int
    text: str

    def __str__(self) -> str:
        place = f" at byte {self.position}" if self.position >= 0 else ""
        return f"{self.path}{place}: {self.text}"


class Check:
    """The check of one directory: what it found, and what it went through."""

    def __init__(
        self,
        files: Files,
        directory: str,
        *,
        running: bool = False,
        on_bytes: Callable[[int], None] | None = None,
        unpacked_bytes_max: int = UNPACKED_BYTES_MAX,
    ) -> None:
        """``running``: a broker may be writing. ``on_bytes`` is called with the number of bytes checked.

        Batches that unpack to more than ``unpacked_bytes_max`` are not looked into.
        """
        self.files = files
        self.directory = directory
        self.running = running
        self.on_bytes = on_bytes or (lambda count: None)
        self.unpacked_bytes_max = unpacked_bytes_max
        self.findings: list[Finding] = []
        self.damages = 0
        self.notes = 0
        self.segments = 0
        self.bytes = 0
        self.batches = 0
        self.records = 0
        self.start_offset = -1
        self.end_offset = -1

    def damage(self, path: str, text: str, position: int = -1) -> None:
        """Something is broken."""
        self.damages += 1
        self._keep(Finding(True, path, position, text))

    def note(self, path: str, text: str, position: int = -1) -> None:
        """Something is worth knowing."""
        self.notes += 1
        self._keep(Finding(False, path, position, text))

    def _keep(self, finding: Finding) -> None:
        if len(self.findings) < FINDINGS_KEPT:
            self.findings.append(finding)

    @property
    def left_out(self) -> int:
        """Findings that were counted and not kept."""
        return self.damages + self.notes - len(self.findings)
