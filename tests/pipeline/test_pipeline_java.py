"""Java for Spark: which Java is used, its problems, and the advice or installation."""

from __future__ import annotations

import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tidemill.model.errors import ConfigError
from tidemill.pipeline import java


def make_java(folder: Path, text: str, code: int = 0) -> Path:
    """Creates a ``bin/java`` that prints its version, as Java does on standard error."""
    command = folder / "bin" / "java"
    command.parent.mkdir(parents=True)
    command.write_text(f"#!/bin/sh\necho '{text}' >&2\nexit {code}\n")
    command.chmod(0o755)
    return command


@pytest.fixture(autouse=True)
def no_brew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(java, "BREW_PREFIXES", ())


@pytest.mark.parametrize(
    ("text", "code", "version"),
    [
        ('openjdk version "17.0.9" 2023-10-17', 0, 17),
        ('java version "1.8.0_392"', 0, 8),
        ('openjdk version "21" 2023-09-19', 0, 21),
        ('openjdk version "17.0.9"', 1, None),
        ("The operation couldn't be completed.", 0, None),
    ],
)
def test_the_version_of_java_is_its_major_one(tmp_path: Path, text: str, code: int, version: int) -> None:
    assert java.java_version(str(make_java(tmp_path, text.replace("'", ""), code))) == version
    assert java.java_version(str(tmp_path / "nothing")) is None


def test_java_home_overrides_the_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    new = make_java(tmp_path / "new", 'openjdk version "17.0.1"')
    old = make_java(tmp_path / "old", 'openjdk version "16.0.2"')
    monkeypatch.setenv("PATH", f"{old.parent}:/bin:/usr/bin")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    assert java.java_command() == str(old)
    assert java.problem_with_java() == f"{old} is Java 16"
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "new"))
    assert java.java_command() == str(new)
    assert java.problem_with_java() is None
    java.require_java()
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "gone"))
    assert java.problem_with_java() == f"JAVA_HOME={tmp_path}/gone has no bin/java"
    with pytest.raises(
        ConfigError, match=r"version 17 or later, and JAVA_HOME=.* has no bin/java\. Install it"
    ):
        java.require_java()


def test_a_missing_or_failing_java_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert java.problem_with_java() == "there is no java on the PATH"
    command = make_java(tmp_path, "nothing", 1)
    monkeypatch.setenv("PATH", f"{command.parent}:/bin:/usr/bin")
    assert java.problem_with_java() == f"{command} does not run"


def test_java_of_homebrew_is_used_if_no_other_is_suitable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "opt" / "openjdk@17" / "libexec" / "openjdk.jdk" / "Contents" / "Home"
    make_java(home, 'openjdk version "17.0.9"')
    monkeypatch.setattr(java, "BREW_PREFIXES", (str(tmp_path / "other"), str(tmp_path)))
    monkeypatch.setenv("PATH", str(tmp_path))
    # Set for the test first, so that the function's change is undone after the test.
    monkeypatch.setenv("JAVA_HOME", "")
    monkeypatch.delenv("JAVA_HOME")
    assert java.problem_with_java() is None
    assert java.java_command() == str(home / "bin" / "java")


@pytest.mark.parametrize(
    ("platform", "there", "words"),
    [
        ("darwin", ["brew", "apt-get"], "Install it with: brew install openjdk@17"),
        ("linux", ["apt-get", "dnf"], "Install it with: sudo apt-get install openjdk-17-jre-headless"),
        ("linux", ["dnf"], "Install it with: sudo dnf install java-17-openjdk-headless"),
        ("linux", [], "Install it from https://adoptium.net, and set JAVA_HOME to its folder"),
    ],
)
def test_the_advice_is_for_the_system(
    monkeypatch: pytest.MonkeyPatch, platform: str, there: list[str], words: str
) -> None:
    monkeypatch.setattr(java, "sys", SimpleNamespace(platform=platform))
    monkeypatch.setattr(java, "shutil", SimpleNamespace(which=lambda name: name if name in there else None))
    assert java.advice() == words


@pytest.mark.parametrize(
    ("there", "root", "good", "asked", "installed"),
    [
        (["apt-get"], True, ["openjdk-17-jre-headless"], ["update", "openjdk-17-jre-headless"], True),
        (
            ["apt-get", "brew"],
            True,
            ["openjdk-21-jre-headless"],
            ["update", "openjdk-17-jre-headless", "openjdk-21-jre-headless"],
            True,
        ),
        (
            ["apt-get"],
            True,
            [],
            ["update", "openjdk-17-jre-headless", "openjdk-21-jre-headless", "default-jre-headless"],
            False,
        ),
        (["apt-get"], False, ["openjdk-17-jre-headless"], [], False),
        (["apt-get", "brew"], False, ["openjdk@17"], ["openjdk@17"], True),
        (["brew"], True, [], ["openjdk@17"], False),
        ([], True, [], [], False),
    ],
)
def test_java_is_installed_with_the_package_manager_of_the_system(
    monkeypatch: pytest.MonkeyPatch,
    there: list[str],
    root: bool,
    good: list[str],
    asked: list[str],
    installed: bool,
) -> None:
    ran: list[str] = []

    def run(command: list[str], **_: Any) -> Any:
        ran.append("update" if "update" in command else command[-1])
        return SimpleNamespace(returncode=0 if command[-1] in good else 1)

    monkeypatch.setattr(java, "shutil", SimpleNamespace(which=lambda name: name if name in there else None))
    monkeypatch.setattr(java.os, "geteuid", lambda: 0 if root else 1000)
    fake = SimpleNamespace(run=run, TimeoutExpired=subprocess.TimeoutExpired)
    monkeypatch.setattr(java, "subprocess", fake)
    assert java.install() is installed
    assert ran == asked


@pytest.mark.parametrize(
    ("problems", "home", "installs", "code"),
    [
        ([None], None, False, 0),
        (["none is there", None], None, True, 0),
        (["none is there", "none is there", "none is there"], None, True, 1),
        (["none is there", "none is there"], None, False, 1),
        (["JAVA_HOME is wrong", "JAVA_HOME is wrong"], "/gone", True, 1),
    ],
)
def test_the_command_installs_java_only_if_the_user_named_none(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    problems: list[str | None],
    home: str | None,
    installs: bool,
    code: int,
) -> None:
    left, tried = list(problems), []
    monkeypatch.setattr(java, "problem_with_java", lambda: left.pop(0))
    monkeypatch.setattr(java, "install", lambda: tried.append(1) or installs)
    if home is None:
        monkeypatch.delenv("JAVA_HOME", raising=False)
    else:
        monkeypatch.setenv("JAVA_HOME", home)
    assert java.main() == code
    assert left == []
    assert bool(tried) == (problems[0] is not None and home is None)
    said = capsys.readouterr().err
    assert ("installing it" in said) == bool(tried)
    assert ("Spark needs a Java runtime of version 17 or later" in said) == bool(code)
