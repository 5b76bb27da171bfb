"""Finds Java for Spark, installs it if possible, or reports the next step.

``make run`` calls it as ``python -m tidemill.pipeline.java``.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from tidemill.model.errors import ConfigError

VERSION_MIN = 17
"""PySpark 4 runs on Java 17 and later."""

DEBIAN_PACKAGES = ("openjdk-17-jre-headless", "openjdk-21-jre-headless", "default-jre-headless")
BREW_PACKAGE = "openjdk@17"
BREW_PREFIXES = ("/opt/homebrew", "/usr/local", "/home/linuxbrew/.linuxbrew")


def java_command() -> str | None:
    """Returns the ``java`` that Spark will start: that of JAVA_HOME if set, otherwise that of the PATH."""
    home = os.environ.get("JAVA_HOME")
    if home:
        command = Path(home) / "bin" / "java"
        return str(command) if command.exists() else None
    return shutil.which("java")


def use_brewed_java() -> None:
    """Sets JAVA_HOME to Homebrew's Java, if installed, which is not on the PATH."""
    for prefix in BREW_PREFIXES:
        home = Path(prefix) / "opt" / BREW_PACKAGE / "libexec" / "openjdk.jdk" / "Contents" / "Home"
        if (home / "bin" / "java").exists():
            os.environ["JAVA_HOME"] = str(home)
            return


def java_version(command: str) -> int | None:
    """Returns the major version of a ``java``; None if it does not run, as the stub of macOS."""
    try:
        done = subprocess.run([command, "-version"], capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = re.search(r'version "(?:1\.)?(\d+)', done.stderr + done.stdout)
    return int(found.group(1)) if done.returncode == 0 and found else None


def problem_with_java() -> str | None:
    """Returns the reason why Java is not usable for Spark; None if it is usable."""
    problem = _problem()
    if problem is not None and "JAVA_HOME" not in os.environ:
        use_brewed_java()
        if "JAVA_HOME" in os.environ:
            return _problem()
    return problem


def _problem() -> str | None:
    command = java_command()
    if command is None:
        home = os.environ.get("JAVA_HOME")
        return f"JAVA_HOME={home} has no bin/java" if home else "there is no java on the PATH"
    version = java_version(command)
    if version is None:
        return f"{command} does not run"
    if version < VERSION_MIN:
        return f"{command} is Java {version}"
    return None


def require_java() -> None:
    """Raises ConfigError, with the next step, if Java is not usable for Spark."""
    problem = problem_with_java()
    if problem is not None:
        raise ConfigError(
            f"Spark needs a Java runtime of version {VERSION_MIN} or later, and {problem}. {advice()}"
        )


def advice() -> str:
    """Returns the instruction to install Java on this system."""
    if sys.platform == "darwin":
        return f"Install it with: brew install {BREW_PACKAGE}"
    if shutil.which("apt-get"):
        return f"Install it with: sudo apt-get install {DEBIAN_PACKAGES[0]}"
    if shutil.which("dnf"):
        return "Install it with: sudo dnf install java-17-openjdk-headless"
    return "Install it from https://adoptium.net, and set JAVA_HOME to its folder"


def install() -> bool:
    """Installs Java with apt-get (as root) or brew; returns whether that succeeded."""
    if shutil.which("apt-get") and os.geteuid() == 0:
        environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        subprocess.run(["apt-get", "update", "-qq"], env=environment, check=False)
        return any(
            subprocess.run(
                ["apt-get", "install", "-y", "-qq", package], env=environment, check=False
            ).returncode
            == 0
            for package in DEBIAN_PACKAGES
        )
    if shutil.which("brew"):
        return subprocess.run(["brew", "install", BREW_PACKAGE], check=False).returncode == 0
    return False


def main() -> int:
    """Ensures that Java is usable; returns exit code 1, after one line of explanation, if it is not."""
    problem = problem_with_java()
    if problem is None:
        return 0
    if "JAVA_HOME" not in os.environ:
        print(f"Spark needs Java {VERSION_MIN} or later, and {problem}: installing it", file=sys.stderr)  # noqa: T201
        if install() and problem_with_java() is None:
            return 0
    try:
        require_java()
    except ConfigError as error:
        print(error, file=sys.stderr)  # noqa: T201
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
