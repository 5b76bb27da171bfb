"""Configured deletion policies."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from faulty_files import FaultyFiles

from record_builders import build_batch
from tidemill.log.log_config import LogConfig
from tidemill.log.log_manager import LogManager
from tidemill.log.retention import POLICIES, SegmentFacts
from tidemill.model.configs import BrokerConfig
from tidemill.model.errors import ConfigError
from tidemill.model.types import TopicPartition
from tidemill.records.batch import parse_batch
from tidemill.server.config_plugins import deletion_policies

NOW = 1_700_000_000_000
MODULE = """
def early(segments, log_bytes, start_offset, config, now_ms):
    return [one.end_offset <= 6 for one in segments]

def broken(segments, log_bytes, start_offset, config, now_ms):
    return [True]

def raising(*arguments):
    raise KeyError("x")

def everything(segments, *rest):
    return [True] * len(segments)

def emptying(segments, *rest):
    segments.clear()

def leaving(*arguments):
    raise SystemExit(3)

number = 1
"""


@pytest.fixture
def name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], str]:
    """Returns ``module:function`` for a function of an importable module."""
    (tmp_path / "deletion_policies_here.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "deletion_policies_here", raising=False)
    return lambda function: f"deletion_policies_here:{function}"


def configured(policy: str) -> BrokerConfig:
    return BrokerConfig.of(log_deletion_policy_class=policy)


def start_after_retention(config: BrokerConfig, cleanup: tuple[str, ...] = ("delete",)) -> int:
    """The log start offset after retention of a log with ten closed segments of one record."""
    logs = LogManager(FaultyFiles(), ["/d"], policies=deletion_policies(config))
    logs.dirs.lock()
    logs.load(NOW, lambda topic: LogConfig())
    settings = LogConfig(retention_ms=-1, cleanup_policy=cleanup)
    log = logs.create(TopicPartition("t", 0), b"T" * 16, settings, NOW)
    for number in range(11):
        data = build_batch([(NOW, b"k", b"v", None)])
        log.append(parse_batch(data, 0, len(data)), 0, NOW)
        if number < 10:
            log.roll(NOW)
    logs.cleanup_logs(NOW, {TopicPartition("t", 0): int(log.end_offset)})
    return int(log.start_offset)


def test_a_configured_policy_deletes_segments(name: Callable[[str], str]) -> None:
    assert start_after_retention(configured(name("early"))) == 6
    assert start_after_retention(BrokerConfig.of()) == 0


def test_a_policy_deletes_neither_the_active_segment_nor_compacted_logs(
    name: Callable[[str], str],
) -> None:
    config = configured(name("everything"))
    assert start_after_retention(config) == 10
    assert start_after_retention(config, ("compact", "delete")) == 10
    assert start_after_retention(config, ("compact",)) == 0


@pytest.mark.parametrize("function", ["broken", "raising", "emptying", "leaving"])
def test_a_failing_policy_deletes_nothing_and_is_logged_once(
    name: Callable[[str], str], function: str, caplog: pytest.LogCaptureFixture
) -> None:
    config = configured(name(function))
    assert start_after_retention(config) == 0
    policies = deletion_policies(config)
    caplog.clear()
    for _ in range(2):
        policies[-1]([SegmentFacts(at, at + 1, 100, NOW) for at in (0, 1)], 0, 0, LogConfig(), NOW)
    assert caplog.text.count("failed; it deletes nothing") == 1


@pytest.mark.parametrize("policy", ["no_such_module_here:f", "deletion_policies_here:none", ":f", "m:"])
def test_an_unknown_function_fails_the_start(name: Callable[[str], str], policy: str) -> None:
    with pytest.raises(ConfigError, match="Give a function as module:function"):
        deletion_policies(configured(policy))


@pytest.mark.parametrize("text", ["1 / 0", "def f(:"])
def test_a_module_with_an_import_error_fails_the_start(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "deletion_policies_wrong.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError, match="importing deletion_policies_wrong failed"):
        deletion_policies(configured("deletion_policies_wrong:f"))


def test_a_value_that_is_not_a_function_fails_the_start(name: Callable[[str], str]) -> None:
    with pytest.raises(ConfigError, match="of type int, not a function"):
        deletion_policies(configured(name("number")))


def test_a_java_class_has_no_effect(caplog: pytest.LogCaptureFixture) -> None:
    assert deletion_policies(configured("org.example.Policy")) is POLICIES
    assert "has no effect" in caplog.text
