"""Finds the process that listens on a port of this machine, in /proc of Linux; elsewhere it finds none."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator
from pathlib import Path

LISTENS = "0A"
"""The state of listening sockets in /proc/net/tcp."""

COMMAND_MAX = 100


def port_user(port: int) -> str | None:
    """Returns the listening process, as ``process 7 (python -m tidemill serve)``; None when it is unknown.

    The open sockets of other users' processes are not visible.
    """
    inodes = set(_inodes(port))
    if not inodes:
        return None
    for directory in Path("/proc").glob("[0-9]*"):
        try:
            if any(os.readlink(file) in inodes for file in (directory / "fd").iterdir()):
                return f"process {directory.name} ({_command(directory)})"
        except OSError:
            continue
    return None


def _inodes(port: int) -> Iterator[str]:
    """Yields the listening sockets of a port, in the form of links in /proc/PID/fd."""
    for name in ("tcp", "tcp6"):
        try:
            lines = Path("/proc/net", name).read_text().splitlines()[1:]
        except OSError:
            continue
        for fields in map(str.split, lines):
            if fields[3] == LISTENS and int(fields[1].rpartition(":")[2], 16) == port:
                yield f"socket:[{fields[9]}]"


def _command(directory: Path) -> str:
    line = (directory / "cmdline").read_bytes().decode("utf-8", "replace")
    program, *arguments = line.rstrip("\0").split("\0")
    text = shlex.join([os.path.basename(program), *arguments])
    text = "".join(letter if letter.isprintable() else "?" for letter in text)
    return text if len(text) <= COMMAND_MAX else f"{text[:COMMAND_MAX]}..."
