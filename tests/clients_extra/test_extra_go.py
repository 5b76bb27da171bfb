"""Clients in Go: go/franz_test.go tests franz-go, go/unasked_test.go tests sarama and kafka-go."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from tidemill.testing import Broker


def test_go_clients_pass_their_tests(extra_broker: Broker, go_tests: Path) -> None:
    outcome = subprocess.run(
        [str(go_tests), "-test.v", "-test.count=1"],
        env={**os.environ, "BOOTSTRAP": extra_broker.bootstrap},
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert outcome.returncode == 0, outcome.stdout + outcome.stderr
    assert outcome.stdout.count("--- PASS") >= 21
