"""Disks that can be full, or slow: a file system in memory, and one on a throttled loop device.

Slow: the data directory is on ext4 on a loop device, which writes through (``sync``) as long as it is slow,
and of which the broker's cgroup may write only so many bytes a second: the process itself makes such writes.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

from fault_network import run

DISK_BYTES = 256 * 1024 * 1024
BLKIO = Path("/sys/fs/cgroup/blkio")
FILLING = "filling"


class Disk:
    """A directory that is a disk of its own."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._device = ""
        self._group = BLKIO / f"tidemill-{os.getpid()}-{path.parent.name}"

    def fill(self, free_bytes: int = 0) -> None:
        """Leaves no room but ``free_bytes``."""
        piece = DISK_BYTES
        with (self.path / FILLING).open("wb", buffering=0) as file:
            while piece >= 4096:
                try:
                    os.posix_fallocate(file.fileno(), os.fstat(file.fileno()).st_size, piece)
                except OSError:  # It does not fit, and a file system may have kept a part of it.
                    piece //= 2
            os.truncate(file.fileno(), max(0, os.fstat(file.fileno()).st_size - free_bytes))

    def clear(self) -> None:
        """Gives the room back."""
        (self.path / FILLING).unlink(missing_ok=True)

    def slow_down(self, pid: int, bytes_per_s: int) -> None:
        """Lets a process write only so much. Only for a disk on a loop device."""
        run("mount", "-o", "remount,sync", str(self.path))
        number = os.stat(self._device).st_rdev
        self._group.mkdir(exist_ok=True)
        limit = f"{os.major(number)}:{os.minor(number)} {bytes_per_s}"
        (self._group / "blkio.throttle.write_bps_device").write_text(limit)
        (self._group / "cgroup.procs").write_text(str(pid))

    def speed_up(self, pid: int) -> None:
        """Ends that."""
        number = os.stat(self._device).st_rdev
        (self._group / "blkio.throttle.write_bps_device").write_text(
            f"{os.major(number)}:{os.minor(number)} 0"
        )
        with contextlib.suppress(ProcessLookupError):
            (BLKIO / "cgroup.procs").write_text(str(pid))
        run("mount", "-o", "remount,async", str(self.path))


def no_small_disks() -> str:
    """Why there can be no file systems of their own; empty when there can."""
    return "" if os.geteuid() == 0 else "mounting a file system needs root"


def no_slow_disks() -> str:
    """Why disks cannot be slowed down; empty when they can."""
    if no_small_disks():
        return no_small_disks()
    if not (BLKIO / "blkio.throttle.write_bps_device").exists():
        return "there is no blkio cgroup that throttles devices"
    missing = [name for name in ("losetup", "mkfs.ext4") if shutil.which(name) is None]
    return f"there is no {missing[0]}" if missing else ""


@contextlib.contextmanager
def disk(path: Path, *, may_be_slow: bool) -> Iterator[Disk]:
    """A file system at ``path``, in memory unless it may be slow."""
    one = Disk(path)
    path.mkdir(parents=True)
    image = path.with_suffix(".image")
    try:
        if may_be_slow:
            with image.open("wb") as file:
                file.truncate(DISK_BYTES)
            run("mkfs.ext4", "-q", "-m", "0", str(image))
            found = subprocess.run(
                ["losetup", "--find", "--show", str(image)], capture_output=True, text=True, check=True
            )
            one._device = found.stdout.strip()
            run("mount", one._device, str(path))
            (path / "lost+found").rmdir()
        else:
            run("mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tidemill", str(path))
        yield one
    finally:
        with contextlib.suppress(RuntimeError):
            run("umount", "--lazy", str(path))
        if one._device:
            with contextlib.suppress(RuntimeError):
                run("losetup", "--detach", one._device)
        with contextlib.suppress(OSError):
            one._group.rmdir()
        image.unlink(missing_ok=True)
