"""Checks and installs system programs for tests: Java for Spark and ZooKeeper, kcat as a client.

``make test`` runs it first. Java is required; without kcat its tests are skipped.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

from tidemill.pipeline import java

QUIET = {"check": False, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}


def install_kcat() -> None:
    """Installs kcat if this user has permission; otherwise prints the command."""
    if shutil.which("kcat") or shutil.which("kafkacat"):
        return
    if shutil.which("apt-get") and os.geteuid() == 0:
        install = ["apt-get", "install", "-y", "-qq", "--no-install-recommends", "kcat"]
        environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        for command in (install, ["apt-get", "update", "-qq"], install):
            subprocess.run(command, env=environment, **QUIET)  # type: ignore[call-overload]
            if shutil.which("kcat"):
                return
    elif shutil.which("brew"):
        subprocess.run(["brew", "install", "--quiet", "kcat"], **QUIET)  # type: ignore[call-overload]
    if shutil.which("kcat") is None:
        print("kcat is not here, its tests are skipped: sudo apt-get install kcat", file=sys.stderr)


def main() -> int:
    """Returns exit code 1, after one line, if Java is missing and cannot be installed."""
    install_kcat()
    return java.main()


if __name__ == "__main__":
    sys.exit(main())
