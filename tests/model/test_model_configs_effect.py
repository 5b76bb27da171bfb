"""Keys that claim an effect are read by the program: a promise in the table is kept somewhere."""

from __future__ import annotations

from pathlib import Path

import tidemill
from tidemill.model.configs import BROKER_KEYS, TOPIC_KEYS
from tidemill.model.configs.tables import BROKER_SYNONYMS, TOPIC_SYNONYMS

SOURCE = Path(tidemill.__file__).parent
READERS = ("model/configs/broker.py", "model/configs/listeners.py", "model/configs/topic.py")
"""Of the configuration itself, only what makes something of values counts as reading them."""
OTHER_PROGRAMS = ("client", "cli", "pipeline", "testing")


def broker_source() -> str:
    texts = []
    for path in SOURCE.rglob("*.py"):
        name = path.relative_to(SOURCE).as_posix()
        if name.partition("/")[0] in OTHER_PROGRAMS:
            continue
        if name.startswith("model/configs/") and name not in READERS:
            continue
        texts.append(path.read_text())
    return "\n".join(texts)


def test_every_key_that_claims_an_effect_is_read() -> None:
    source = broker_source()
    through_topics = {
        broker_key for topic_key, broker_key in TOPIC_SYNONYMS.items() if TOPIC_KEYS[topic_key].takes_effect
    }
    as_synonym = {name for found in BROKER_SYNONYMS.values() for name, _ in found}
    unread = [
        f"{key.scope} {key.name}"
        for table in (BROKER_KEYS, TOPIC_KEYS)
        for key in table.values()
        if key.takes_effect and f'"{key.name}"' not in source
        if not (key.scope == "broker" and key.name in through_topics | as_synonym)
    ]
    assert unread == []


def test_a_topic_key_and_its_broker_synonym_agree_on_having_an_effect() -> None:
    odd = [
        name
        for name, synonym in TOPIC_SYNONYMS.items()
        if TOPIC_KEYS[name].effect != BROKER_KEYS[synonym].effect
    ]
    assert odd == []
