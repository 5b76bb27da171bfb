"""Disks that can be full, slow or empty, or lose their power: file systems on loop devices, or in memory.

Slow: the file system is mounted with ``sync`` while it is slow, and the cgroup of the broker limits the write
rate of the device: the process itself makes these writes.

Without power: the kernel shuts the file system down without further writes (``EXT4_IOC_SHUTDOWN``, as the
tests of Linux's file systems do), and it is mounted again. Unsynced data are lost, as after a power cut; ext4
recovers from its journal.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import struct
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

from fault_network import run

DISK_BYTES = 256 * 1024 * 1024
BLKIO = Path("/sys/fs/cgroup/blkio")
MEMORY = Path("/dev/shm")
FILLING = "filling"
EXT4_IOC_SHUTDOWN = 0x8004587D
WITHOUT_JOURNAL_FLUSH = struct.pack("I", 2)
UNMOUNT_S = 20.0


class Disk:
    """A directory on a separate file system."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._device = ""
        self._group = BLKIO / f"tidemill-{os.getpid()}-{path.parent.name}"

    def fill(self, free_bytes: int = 0) -> None:
        """Fills the disk except for ``free_bytes``."""
        piece = DISK_BYTES
        with (self.path / FILLING).open("wb", buffering=0) as file:
            while piece >= 4096:
                try:
                    os.posix_fallocate(file.fileno(), os.fstat(file.fileno()).st_size, piece)
                except OSError:  # The data does not fit, and a file system may have kept a part of it.
                    piece //= 2
            os.truncate(file.fileno(), max(0, os.fstat(file.fileno()).st_size - free_bytes))

    def clear(self) -> None:
        """Frees the space again."""
        (self.path / FILLING).unlink(missing_ok=True)

    def cut_power(self) -> None:
        """Discards unsynced data. No process may use the disk. Only for a loop device."""
        directory = os.open(self.path, os.O_RDONLY)
        try:
            fcntl.ioctl(directory, EXT4_IOC_SHUTDOWN, WITHOUT_JOURNAL_FLUSH)
        finally:
            os.close(directory)
        self._unmount()
        self._mount()

    def replace(self) -> None:
        """Replaces the disk by an empty one. No process may use the disk. Only for a loop device."""
        self._unmount()
        self._format()

    def _format(self) -> None:
        until_free("mkfs.ext4", "-q", "-F", "-m", "0", self._device)
        self._mount()
        (self.path / "lost+found").rmdir()

    def _mount(self) -> None:
        until_free("mount", self._device, str(self.path))

    def _unmount(self) -> None:
        """Returns when no process has the file system mounted: ended processes keep it for a moment."""
        until_free("umount", str(self.path))
        in_use = Path("/sys/fs/ext4", Path(self._device).name)
        deadline = time.monotonic() + UNMOUNT_S
        while in_use.exists():
            if time.monotonic() > deadline:
                raise RuntimeError(f"{self.path} is still mounted by a process")
            time.sleep(0.01)

    def slow_down(self, pid: int, bytes_per_s: int) -> None:
        """Limits the write rate of a process. Only for a disk on a loop device."""
        run("mount", "-o", "remount,sync", str(self.path))
        number = os.stat(self._device).st_rdev
        self._group.mkdir(exist_ok=True)
        limit = f"{os.major(number)}:{os.minor(number)} {bytes_per_s}"
        (self._group / "blkio.throttle.write_bps_device").write_text(limit)
        (self._group / "cgroup.procs").write_text(str(pid))

    def speed_up(self, pid: int) -> None:
        """Removes the limit."""
        number = os.stat(self._device).st_rdev
        (self._group / "blkio.throttle.write_bps_device").write_text(
            f"{os.major(number)}:{os.minor(number)} 0"
        )
        with contextlib.suppress(ProcessLookupError):
            (BLKIO / "cgroup.procs").write_text(str(pid))
        run("mount", "-o", "remount,async", str(self.path))


def until_free(*command: str) -> None:
    """Runs a command on a disk that another process may still use for a moment."""
    deadline = time.monotonic() + UNMOUNT_S
    while True:
        try:
            return run(*command)
        except RuntimeError:
            if time.monotonic() > deadline:
                raise
        time.sleep(0.05)


def no_small_disks() -> str:
    """Returns why separate file systems are not possible; empty if they are."""
    return "" if os.geteuid() == 0 else "mounting a file system needs root"


def no_devices() -> str:
    """Returns why disks cannot be devices, which lose power; empty if they can."""
    if no_small_disks():
        return no_small_disks()
    missing = [name for name in ("losetup", "mkfs.ext4", "unshare") if shutil.which(name) is None]
    return f"there is no {missing[0]}" if missing else ""


def no_slow_disks() -> str:
    """Returns why disks cannot be slowed down; empty if they can."""
    if no_devices():
        return no_devices()
    if not (BLKIO / "blkio.throttle.write_bps_device").exists():
        return "there is no blkio cgroup that throttles devices"
    return ""


@contextlib.contextmanager
def disk(path: Path) -> Iterator[Disk]:
    """A file system at ``path``: on a loop device if possible, otherwise in memory."""
    one = Disk(path)
    path.mkdir(parents=True)
    # Syncs in memory take no time.
    image = (MEMORY if MEMORY.is_dir() else path.parent) / f"tidemill-{os.getpid()}-{path.parent.name}.image"
    try:
        if no_devices():
            run("mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tidemill", str(path))
        else:
            with image.open("wb") as file:
                file.truncate(DISK_BYTES)
            found = subprocess.run(
                ["losetup", "--find", "--show", str(image)], capture_output=True, text=True, check=True
            )
            one._device = found.stdout.strip()
            one._format()
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
