"""Hundreds of thousands of random frames do not affect the broker or other clients.

``TIDEMILL_SEED`` repeats a run, ``TIDEMILL_FUZZ_S`` makes it longer.
"""

from __future__ import annotations

import os
import random
import struct
import time
from collections.abc import Iterator

import pytest
from hostile_frames import FrameGenerator, framed
from hostile_peers import Peer, burst, check_log, make_topic, normal_client, seed_of, under_attack

from tidemill.broker.api_registry import APIS
from tidemill.model.errors import ErrorCode
from tidemill.testing import Broker
from tidemill.wire.apis import API, ApiKey
from tidemill.wire.header import decode_response
from tidemill.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState

FUZZ_S = float(os.environ.get("TIDEMILL_FUZZ_S") or 10)
FRAMES_MIN_PER_S = 150
"""The number that a busy machine handles; with fewer frames the test would prove nothing."""


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    """The attacked broker."""
    config = {"auto.create.topics.enable": "false", "group.max.session.timeout.ms": "10000"}
    with Broker(config) as one:
        yield one
        check_log(one)


def warm_up(broker: Broker, generator: FrameGenerator) -> None:
    """Sends one request of each API: the first use loads handlers and codecs, which is no leak."""
    for key, version in generator.versions:
        burst(broker, generator.valid_request(key, version), 0.05)


def test_every_version_of_every_api_accepts_random_values(broker: Broker) -> None:
    seed = seed_of()
    print(f"TIDEMILL_SEED={seed}")
    topic_id = make_topic(broker, "values")
    generator = FrameGenerator(seed, "values", topic_id)
    with under_attack(broker, 200):
        for key, version in generator.versions:
            for _ in range(3):
                burst(broker, generator.valid_request(key, version), 0.01)


def test_thousands_of_random_frames_do_not_stop_the_broker(broker: Broker) -> None:
    seed = seed_of()
    print(f"TIDEMILL_SEED={seed}")
    topic_id = make_topic(broker, "victim", 2)
    generator = FrameGenerator(seed, "victim", topic_id)
    chance = random.Random(seed)
    warm_up(broker, generator)
    sent = answered = ended = 0
    with under_attack(broker, 60):
        began = time.monotonic()
        while time.monotonic() - began < FUZZ_S:
            count = chance.choice((1, 2, 3, 5, 100))
            answered += burst(broker, b"".join([generator.frame() for _ in range(count)]))
            sent += count
            ended += 1
    print(f"{sent} frames in {FUZZ_S:g} s: {answered} answered, {ended} connections")
    assert answered + ended > FRAMES_MIN_PER_S * FUZZ_S


def test_a_request_truncated_at_every_byte_leaves_nothing(broker: Broker) -> None:
    seed = seed_of()
    print(f"TIDEMILL_SEED={seed}")
    generator = FrameGenerator(seed, "half", make_topic(broker, "half"))
    with under_attack(broker, 30):
        for _ in range(4):
            frame = generator.valid_request()[:400]
            for size in range(1, len(frame)):
                burst(broker, frame[:size], 0.005)


def test_a_topic_deleted_under_attack_leaves_nothing(broker: Broker) -> None:
    seed = seed_of()
    print(f"TIDEMILL_SEED={seed}")
    with under_attack(broker, 60):
        for number in range(5):
            name = f"doomed-{number}"
            generator = FrameGenerator(f"{seed} {number}", name, make_topic(broker, name, 2))
            for _ in range(10):
                burst(broker, b"".join([generator.frame() for _ in range(20)]))
            with Peer(broker) as peer:
                request = DeleteTopicsRequest(
                    topics=[DeleteTopicState(name=name)], topic_names=[], timeout_ms=5000
                )
                peer.ask(ApiKey.DELETE_TOPICS, 6, request)
            burst(broker, b"".join([generator.frame() for _ in range(20)]))


def test_the_broker_restarts_after_an_attack(broker: Broker) -> None:
    seed = seed_of()
    print(f"TIDEMILL_SEED={seed}")
    with Broker({"group.max.session.timeout.ms": "10000"}) as visited:
        generator = FrameGenerator(seed, "visited", make_topic(visited, "visited", 2))
        for _ in range(2):
            for _ in range(60):
                burst(visited, b"".join([generator.valid_request() for _ in range(5)]))
                burst(visited, generator.produce())
            visited.kill()
            visited.start()
            with normal_client(visited):
                burst(visited, generator.valid_request())
            assert visited.stop() == 0
            visited.start()
            with normal_client(visited):
                burst(visited, generator.valid_request())
        check_log(visited)


def test_unreadable_requests_close_their_connection(broker: Broker) -> None:
    with under_attack(broker, 30):
        for api in APIS.values():
            for version in {api.first - 1, api.last + 1, -1, 32767, -32768} - {0}:
                with Peer(broker) as peer:
                    peer.socket.sendall(framed(struct.pack(">hhih", api.key, version, 7, -1) + b"\0"))
                    if api.key == ApiKey.API_VERSIONS:
                        # Version 0 of the response, with the error and the supported versions.
                        correlation_id, response = decode_response(18, 0, peer.frame())
                        assert correlation_id == 7
                        assert response.error_code == ErrorCode.UNSUPPORTED_VERSION
                        assert [one.api_key for one in response.api_keys] == [18]
                    else:
                        assert peer.is_closed(), (api.key, version)
        for key in (-1, max(API) + 1, 99, 127, 128, 200, 32767, -32768):
            with Peer(broker) as peer:
                peer.socket.sendall(framed(struct.pack(">hhih", key, 0, 7, -1) + b"\0" * 8))
                assert peer.is_closed(), key
