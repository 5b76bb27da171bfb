"""``tidemill topic promote``: names are checked before the first change, and a promotion is confirmed."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tidemill.cli import output
from tidemill.client import Admin, Producer
from tidemill.model.mirror_state import ACTIVE, MIRROR_STATE
from tidemill.testing import Broker

Run = Callable[..., str]


@pytest.fixture
def mirror(cli: Run, topic: str) -> str:
    cli("topic", "create", f"{topic}-mirror", "-p", "2", "--set", f"{MIRROR_STATE}={ACTIVE}")
    return f"{topic}-mirror"


def state(broker: Broker, name: str) -> str | None:
    with Admin(broker.bootstrap) as admin:
        return admin.topic_configs(name)[MIRROR_STATE].value


def test_no_mirror_is_promoted_if_another_name_is_wrong(
    broker: Broker, cli: Run, topic: str, mirror: str
) -> None:
    assert "no-such-topic" in cli("topic", "promote", mirror, "no-such-topic", code=1)
    assert state(broker, mirror) == ACTIVE
    assert f"{topic} is an ordinary topic" in cli("topic", "promote", mirror, topic, code=1)
    assert state(broker, mirror) == ACTIVE


def test_a_promotion_asks_on_a_terminal(
    broker: Broker, cli: Run, mirror: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    monkeypatch.setattr(output, "is_interactive", lambda: True)
    monkeypatch.setattr(output.click, "confirm", lambda question: asked.append(question))
    assert "nothing was done: not confirmed" in cli("topic", "promote", mirror, code=1)
    assert mirror in asked[0]
    assert state(broker, mirror) == ACTIVE
    cli("topic", "promote", "--yes", mirror)
    assert len(asked) == 1
    assert state(broker, mirror) == "none"


def test_a_promotion_can_be_repeated_until_the_topic_has_further_messages(
    broker: Broker, cli: Run, topic: str, mirror: str
) -> None:
    assert cli("topic", "promote", mirror) == f"promoted {mirror}\n"
    assert cli("topic", "promote", mirror) == f"{mirror} is promoted already\n"
    with Producer(broker.bootstrap) as producer:
        producer.send(mirror, b"value", partition=0).result(10)
        assert cli("topic", "promote", mirror) == f"{mirror} is promoted already\n", "partition 1 shows it"
        producer.send(mirror, b"value", partition=1).result(10)
    told = cli("topic", "promote", mirror, code=1)
    assert "it never was a mirror, or was promoted before its last messages" in told
