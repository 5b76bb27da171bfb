"""kcat with the options that shell users give."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from client_peers import KCAT, KCAT_MISSING, kcat

from tidemill.testing import Broker

pytestmark = pytest.mark.skipif(KCAT is None, reason=KCAT_MISSING)

NewTopic = Callable[..., str]
NewName = Callable[[str], str]


def test_lists_the_cluster(client_broker: Broker, new_topic: NewTopic) -> None:
    topic = new_topic(3)
    told = json.loads(kcat("-b", client_broker.bootstrap, "-L", "-J"))
    assert [one["name"] for one in told["brokers"]] == [client_broker.bootstrap]
    partitions = {one["topic"]: len(one["partitions"]) for one in told["topics"]}
    assert partitions[topic] == 3


def test_writes_lines_and_reads_them(bootstrap: str, new_topic: NewTopic) -> None:
    topic = new_topic()
    kcat("-b", bootstrap, "-t", topic, "-P", data=b"one\ntwo\nthree\n")
    assert kcat("-b", bootstrap, "-t", topic, "-C", "-e", "-q") == b"one\ntwo\nthree\n"
    assert kcat("-b", bootstrap, "-t", topic, "-C", "-e", "-q", "-o", "-1") == b"three\n"
    assert kcat("-b", bootstrap, "-t", topic, "-C", "-q", "-o", "1", "-c", "1") == b"two\n"


def test_looks_up_offsets_by_time(bootstrap: str, new_topic: NewTopic) -> None:
    topic = new_topic()
    kcat("-b", bootstrap, "-t", topic, "-P", data=b"one\ntwo\n")
    assert kcat("-b", bootstrap, "-Q", "-t", f"{topic}:0:0") == f"{topic} [0] offset 0\n".encode()
    assert kcat("-b", bootstrap, "-Q", "-t", f"{topic}:0:-1") == f"{topic} [0] offset 2\n".encode()
    since = kcat("-b", bootstrap, "-t", topic, "-C", "-e", "-q", "-o", "s@0")
    assert since == b"one\ntwo\n"


def test_reads_in_a_group_and_continues_at_its_offset(
    bootstrap: str, new_topic: NewTopic, new_name: NewName
) -> None:
    topic, group = new_topic(), new_name("group")
    options = ("-X", "auto.offset.reset=earliest", "-q", "-c", "2", "-G", group, topic)
    kcat("-b", bootstrap, "-t", topic, "-P", data=b"one\ntwo\nthree\nfour\n")
    assert kcat("-b", bootstrap, *options) == b"one\ntwo\n"
    assert kcat("-b", bootstrap, *options) == b"three\nfour\n"
