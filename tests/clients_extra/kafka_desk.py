"""Runs Apache Kafka's command-line tools in one process: a JVM per tool would take most of a test's time."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from kafka_peer import java

SOURCES = Path(__file__).with_name("java")
END = "\x01"


class Desk:
    """``desk("org.apache.kafka.tools.TopicCommand", "--list", ...)`` returns the output of the tool."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def __call__(self, name: str, *arguments: str, code: int | None = 0) -> str:
        """Runs the tool; raises AssertionError for another exit code than the expected."""
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        stdin.write("\t".join([name, *arguments]) + "\n")
        stdin.flush()
        said = []
        for line in stdout:
            if END in line:
                before, _, status = line.partition(END)
                text = "".join([*said, before])
                assert code is None or int(status) == code, f"{name} {arguments}: {status}\n{text}"
                return text
            said.append(line)
        raise AssertionError(f"{name} {arguments} ended the process:\n{''.join(said)}")


def compiled(jars: str, place: Path, *sources: str) -> str:
    """Returns the class path with the compiled programs of this folder."""
    classes = place / "classes"
    paths = [str(SOURCES / f"{name}.java") for name in sources]
    command = ["javac", "-nowarn", "-cp", jars, "-d", str(classes), *paths]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return f"{classes}:{jars}"


@contextmanager
def desk(class_path: str) -> Iterator[Desk]:
    """A desk with jars for which ``Desk`` was compiled."""
    command = java(class_path, "Desk", heap="256m")
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        try:
            yield Desk(process)
        finally:
            process.kill()
