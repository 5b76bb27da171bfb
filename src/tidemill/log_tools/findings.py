"""The findings of a check of files: damage, and notes on harmless facts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from tidemill.model.system_interfaces import Files

FINDINGS_KEPT: Final = 50
"""The limit of findings per directory; further findings are only counted, however much is damaged."""


class Finding(NamedTuple):
    """One finding. ``position`` is a byte of the file, -1 where it concerns the whole file."""

    damage: bool
    path: str
    position: int
    text: str

    def __str__(self) -> str:
        place = f" at byte {self.position}" if self.position >= 0 else ""
        return f"{self.path}{place}: {self.text}"


class Check:
    """The check of one directory: its findings, and the numbers of checked segments, batches and records."""

    def __init__(
        self,
        files: Files,
        directory: str,
        *,
        unpacked_bytes_max: int,
        running: bool = False,
        on_bytes: Callable[[int], None] | None = None,
    ) -> None:
        """``running``: a broker may be writing. ``on_bytes`` is called with the number of bytes checked.

        Batches that unpack to more than ``unpacked_bytes_max`` are not checked.
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
        """Adds a damage."""
        self.damages += 1
        self._keep(Finding(True, path, position, text))

    def unreadable(self, path: str, problem: OSError) -> None:
        """Adds the damage of an unreadable file: the file that ``problem`` names, or ``path``."""
        self.damage(str(problem.filename or path), f"cannot be read: {problem.strerror}")

    def note(self, path: str, text: str, position: int = -1) -> None:
        """Adds a note."""
        self.notes += 1
        self._keep(Finding(False, path, position, text))

    def _keep(self, finding: Finding) -> None:
        if len(self.findings) < FINDINGS_KEPT:
            self.findings.append(finding)

    @property
    def left_out(self) -> int:
        """The number of findings that were counted and not kept."""
        return self.damages + self.notes - len(self.findings)
